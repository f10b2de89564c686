"""A writer whose user's code raises at random: it ends with that error, and each record is in exactly one place."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

from penstock.async_sink import (
    All,
    AsyncSinkConfig,
    EntryFailure,
    FatalExceptionClassifier,
    Ordering,
    PerShardRateLimitingStrategy,
    ResultHandler,
    aimd_strategy,
)
from penstock.async_sink.errors import RecordsRejectedError
from penstock.async_sink.testing import FakeClock, FakeDestination, FakeRequest, FakeWriter
from tools.prove.fuzz.target import MEBIBYTE, Target, loop

_RECORDS = 60


class _UserError(Exception):
    pass


class _Raiser:
    """Raises once, after a number of calls of all code of the user together."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.error: _UserError | None = None

    def __call__(self, where: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.error = _UserError(where)
            raise self.error


class _Raising:
    """What it is given, with a raiser that is called before each of the methods."""

    def __init__(self, inner: Any, may_raise: _Raiser) -> None:
        self._inner, self._may_raise = inner, may_raise

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name == "lane_limiter":
            return _Raising(value, self._may_raise)
        if not callable(value):
            return value

        def call(*arguments: Any) -> Any:
            self._may_raise(name)
            return value(*arguments)

        return call


class _Ends:
    """Where records end: taken by a listener or by a terminal record handler."""

    takes_many = False

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self.taken: list[str] = []

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        pass

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.taken.append(str(entry_index))

    def abandoned(self, error: BaseException) -> None:
        pass

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def handle(self, records: Sequence[Any]) -> Any:
        if self._waits:
            return self._take(records)
        self.taken += [record.entry for record in records]
        return None

    async def _take(self, records: Sequence[Any]) -> None:
        await asyncio.sleep(0)
        self.taken += [record.entry for record in records]


class _Destination(FakeDestination):
    """Takes entries, refuses them temporarily or permanently, or raises."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance

    async def submit(self, entries: Sequence[Any], handler: ResultHandler[Any]) -> None:
        request, chance = FakeRequest(list(entries), handler), self._chance
        await asyncio.sleep(0)
        if chance.random() < 0.1:
            raise OSError("away")
        failures = [
            EntryFailure(index, "x", throttled=chance.random() < 0.5, final=chance.random() < 0.2)
            for index in range(len(entries))
            if chance.random() < 0.2
        ]
        failed = {failure.index for failure in failures}
        self.accepted += [entry for index, entry in enumerate(request.entries) if index not in failed]
        handler.retry_failures(failures, lanes=[f"shard-{int(entry) % 2}" for entry in entries])


class _Writer(FakeWriter):
    def __init__(self, may_raise: _Raiser, *arguments: Any, **keywords: Any) -> None:
        self._may_raise = may_raise
        super().__init__(*arguments, **keywords)

    def get_order_key(self, entry: Any) -> Any:
        self._may_raise("get_order_key")
        return int(entry) % 3 or None


def attempt(data: bytes) -> str:
    """Write records, with limits and a call that raises as the bytes say. Returns what raised, and where it led.

    Raises:
        AssertionError: a record is lost, or in two places; a number is wrong; or the writer hangs.
    """
    return loop().run_until_complete(_attempt(data))


async def _attempt(data: bytes) -> str:
    batch, in_flight, ordering, flags, after_low, after_high = data[:6].ljust(6, b"\x03")
    chance, clock = Random(data[6:]), FakeClock()
    raiser = _Raiser(1 + after_low + 256 * (after_high % 4))
    fake, ends = _Destination(chance), _Ends(waits=bool(flags & 1))
    config = AsyncSinkConfig(
        max_batch_size=1 + batch % 12,
        max_in_flight_requests=1 + in_flight % 4,
        max_buffered_requests=20,
        ordering=list(Ordering)[ordering % 3],
        time_to_live=timedelta(seconds=2) if flags & 2 else None,
    )
    shards = PerShardRateLimitingStrategy(records_per_second=50, hash_key=lambda entry: int(entry) % 2)
    user_code = _Raising(ends, raiser)
    writer = _Writer(
        raiser,
        fake,
        config,
        clock=clock,
        random=chance.random,
        strategy=_Raising(All(aimd_strategy(config), shards), raiser),
        terminal=user_code if flags & 4 else None,
        converter=_Raising(_Converter(), raiser),
        classifier=FatalExceptionClassifier(_Raising(_Converter(), raiser).is_fatal),
    )
    listener = user_code if flags & 8 else None

    async def write() -> None:
        for number in range(_RECORDS):
            await writer.write(str(number), listener=listener, index=number)
        await writer.flush(end_of_input=True)

    error: BaseException | None = None
    try:
        await writer.__aenter__()
        writing = asyncio.create_task(write())
        for _ in range(3_000):
            await clock.advance(0.1)
            if writing.done():
                break
        assert writing.done(), "the writer hangs"
        error = writing.exception()
        await writer.close()
    except _UserError as raised:
        error = error or raised
    if raiser.error is not None and not isinstance(error, RecordsRejectedError):
        # A record that was refused without a handler may have ended the writer before.
        assert error is raiser.error, error
    kept = [entry for state in writer.snapshot_state() for entry, _ in state.entries]
    written = [str(number) for number in range(writer.records_written)]
    assert sorted(fake.accepted + ends.taken + kept, key=int) == written, "a record is lost or doubled"
    assert writer.metrics.records_out == len(fake.accepted)
    assert (writer.in_flight_requests, writer.in_flight_messages) == (0, 0)
    return f"{config.ordering.value}, {error!r:.40}, {bool(kept)}"


class _Converter:
    def apply(self, element: str, context: object) -> str:
        return element

    def is_fatal(self, error: BaseException) -> bool:
        return False


SINK = {
    "sink-user-code": Target(
        lambda: [bytes((9, 3, order, flags, 40, 0)) for order in range(3) for flags in (0, 4, 5, 8, 15)],
        attempt,
        memory_bytes=64 * MEBIBYTE,
    ),
}
