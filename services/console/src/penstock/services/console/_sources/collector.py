"""Asks all services again and again, and remembers what they said."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import grpc

from penstock.aws import AwsError
from penstock.efo_consumer import EfoConsumerError
from penstock.operator_attributes.errors import OperatorAttributesError
from penstock.registration.errors import RegistrationError
from penstock.rpc import PenstockRpcError
from penstock.services.console._sources.bounded import CALL_SECONDS, why
from penstock.services.console._sources.services import AnySource
from penstock.services.console._values import (
    Answer,
    Kind,
    Lags,
    Rates,
    Snapshot,
    State,
    TakenAt,
    reading_counters,
    sessions_by_endpoint,
    sink_counters,
)

_ANSWER_SECONDS = 8.0
"""Deadline of all calls of a source together; each call has its own as well."""
_log = logging.getLogger(__name__)
ASKING_ERRORS = (
    AwsError,
    EfoConsumerError,
    OperatorAttributesError,
    PenstockRpcError,
    RegistrationError,
    grpc.RpcError,
    OSError,
    TimeoutError,
)
"""What clients of services raise when a service cannot be asked."""


@dataclass
class _Asked:
    source: AnySource
    seconds: float
    answer: Answer[Any]


class Collector:
    """Between enter and exit, each source is asked at its own pace, so that one that is down delays no other.

    Args:
        sources: each with the seconds between two questions to it.
        clock: monotonic seconds.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        sources: Sequence[tuple[AnySource, float]],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._rates = Rates()
        self._taken = TakenAt()
        self._lags = Lags()
        self._asked = [
            _Asked(source, seconds, Answer(kind=source.kind, endpoint=source.address)) for source, seconds in sources
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask_again(one), name=f"ask {one.answer.name}") for one in self._asked]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(one.source.close() for one in self._asked), return_exceptions=True)

    def now(self) -> float:
        """Monotonic seconds, as in `Answer.answered_at`."""
        return self._clock()

    def snapshot(self) -> Snapshot:
        """What all said last."""
        by_kind: dict[Kind, list[Answer[Any]]] = {kind: [] for kind in Kind}
        for one in self._asked:
            by_kind[one.answer.kind].append(one.answer)
        return Snapshot(
            registry=next(iter(by_kind[Kind.REGISTRY]), None),
            readers=tuple(by_kind[Kind.READER]),
            drivers=tuple(by_kind[Kind.DRIVERS]),
            sinks=tuple(by_kind[Kind.SINK]),
            stages=next(iter(by_kind[Kind.STAGES]), None),
            kinesis=next(iter(by_kind[Kind.KINESIS]), None),
            rates=self._rates.per_second(),
            taken_at=self._taken.times(),
            lags=self._lags.points(),
        )

    async def _ask_again(self, one: _Asked) -> None:
        while True:
            await self._ask(one)
            # A listing of shards waits for the services to name streams.
            empty = one.source.kind is Kind.KINESIS and not one.answer.value
            await self._sleep(min(one.seconds, 2.0) if empty else one.seconds)

    async def _ask(self, one: _Asked) -> None:
        # A listing asks for many streams, a few at once: it has until it is due again.
        patience = one.seconds if one.source.kind is Kind.KINESIS else _ANSWER_SECONDS
        try:
            async with asyncio.timeout(patience) as limit:
                value = await one.source.fetch()
        except ASKING_ERRORS as error:
            await self._fail(one, why(error, patience if limit.expired() else CALL_SECONDS))
        except Exception:
            # A bug, or an unforeseen answer: the other pages still work, and the log says what it was.
            _log.exception("asking %s failed", one.answer.name)
            await self._fail(one, "the answer could not be understood; the console's log says more")
        else:
            now = self._clock()
            left_out = one.source.left_out
            one.answer = replace(one.answer, state=State.UP, reason="", value=value, left_out=left_out, answered_at=now)
            self._remember(one.answer, now)

    async def _fail(self, one: _Asked, reason: str) -> None:
        if one.answer.state is not State.DOWN:
            _log.warning("%s does not answer: %s", one.answer.name, reason)
        one.answer = replace(one.answer, state=State.DOWN, reason=reason)
        # The next question opens a channel of its own: files of tokens and certificates are read again.
        try:
            await one.source.close()
        except Exception:
            # It is asked again all the same, by another one.
            _log.exception("the connection to %s cannot be closed", one.answer.name)

    def _remember(self, answer: Answer[Any], now: float) -> None:
        if answer.kind is Kind.SINK:
            counters = sink_counters(answer.endpoint, answer.value or ())
        elif answer.kind in (Kind.READER, Kind.DRIVERS):
            readers = sessions_by_endpoint(answer)
            counters = reading_counters(readers)
            self._taken.take(answer.name, readers, now)
            self._lags.take(answer.name, readers, now)
        else:
            return
        self._rates.take(answer.name, counters, now)
