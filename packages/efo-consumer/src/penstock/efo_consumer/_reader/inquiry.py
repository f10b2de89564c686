"""Reads a shard through refusals, and decides at one place what each refusal means: a loss, or where to resume."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.aws import AwsError
from penstock.efo_consumer._continuity.guard import ContinuitySource, Loss, Resume, ShardGuard
from penstock.efo_consumer._model.positions import ShardPosition
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.condition import NoteSign, unnoted
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND
from penstock.efo_consumer._publish.retries import bear
from penstock.efo_consumer.errors import EfoConsumerError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
    from datetime import timedelta

_T = TypeVar("_T")

REFUSALS: Final = 5
"""How often in a row a position may be refused before the error is raised."""


class ShardInquiry:
    """One reading of a shard: it resumes after refusals, and reports the records that are lost.

    Args:
        source: Kinesis.
        stream: name or ARN.
        shard_id: the shard.
        created_millis: when the stream of the positions was created, if known.
        patience: returns how long a question to Kinesis is retried; zero for no limit.
        tell: takes a loss and the position that it follows. It raises the loss or counts it.
        note: takes failures that are retried.
        standing: returns the shards that have positions, which cannot be successors of a shard that is gone. None if
            the caller decides about successors.

    Attributes:
        is_reported: whether the loss before the next event has been reported.
        gone: the loss that ended the reading, because the shard is gone; None otherwise.
    """

    def __init__(
        self,
        source: ContinuitySource,
        stream: str,
        shard_id: str,
        *,
        created_millis: int | None,
        patience: Callable[[], timedelta],
        tell: Callable[[Loss, ShardPosition], None],
        note: NoteSign = unnoted,
        standing: Callable[[], Collection[str] | None] = tuple,
    ) -> None:
        self._source = source
        self._place = (stream, shard_id)
        self._patience = patience
        self._tell = tell
        self._note = note
        self._standing = standing
        self._refusals = 0
        self._guard = ShardGuard(source, stream, shard_id, created_millis=created_millis)
        self.is_reported = False
        self.gone: Loss | None = None

    async def read(
        self,
        attempt: Callable[[ShardPosition], AsyncGenerator[_T, None]],
        begin: ShardPosition,
        given: Callable[[], ShardPosition],
    ) -> AsyncGenerator[_T, None]:
        """Yield what attempts bring. Each attempt begins where the refusal of the previous one says.

        Args:
            attempt: reads from a position until it has nothing more to give. It checks what it yields.
            begin: where the first attempt begins.
            given: returns the position up to which everything was delivered, with its facts.

        Raises:
            DataLossError: raised by `tell`.
            EfoConsumerError, AwsError: an error of an attempt that is not about its position, or that came too often;
                or Kinesis could not be asked.
        """
        while True:
            try:
                async with aclosing(attempt(begin)) as items:
                    async for item in items:
                        yield item
                        self._refusals = 0
                return
            except (EfoConsumerError, AwsError) as error:
                after = given()
                found = await self._judge(error, begin, after)
                if isinstance(found, Resume):
                    begin = found.position
                    continue
                if not self.is_reported:
                    self._tell(found, after)
                # The next event is after the gap, which was reported.
                self.is_reported, begin = True, ShardPosition.trim_horizon()
                if found.listed is not None:
                    self.gone = found
                    return

    async def ask(self, question: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a question for as long as the patience lasts.

        Raises:
            RecordPublisherRetriesError: every attempt failed for that long.
            EfoConsumerError, AwsError: an error of the question that is not retryable.
        """
        stream, shard_id = self._place
        return await bear(
            question,
            stream=StreamIdentity.of(stream).name,
            shard_id=shard_id,
            operation="asking Kinesis what became of a position",
            patience_seconds=self._patience().total_seconds(),
            note=self._note,
            service_seconds=lambda: self._source.service_millis() / 1000,
        )

    async def check(self, after: ShardPosition, now_millis: int) -> None:
        """Report records that were lost between a position and what was read after it; see `ShardGuard.check`."""
        if not (self.is_reported or self._guard.passes(after, now_millis)):
            loss = await self.ask(partial(self._guard.check, after, now_millis))
            if loss is not None:
                self._tell(loss, after)
        self.is_reported = False

    @property
    def is_proved(self) -> bool:
        """Whether `prove` has nothing to do."""
        return self._guard.is_proved

    async def prove(self) -> None:
        """See `ShardGuard.prove`."""
        await self.ask(partial(self._guard.prove, self._tell))

    async def _judge(
        self, error: EfoConsumerError | AwsError, begin: ShardPosition, after: ShardPosition
    ) -> Loss | Resume:
        """Decide about an error of an attempt that began at `begin`. Waits if the answer is to resume later."""
        code = getattr(error, "code", type(error).__name__)
        self._refusals += 1
        # A position that was chosen because it cannot be refused is tried once; its shard may go meanwhile.
        if self._refusals > (REFUSALS if begin == after or code == NOT_FOUND else 1):
            raise error
        found = await self.ask(
            partial(
                self._guard.judge_refusal,
                after,
                code,
                standing=self._standing(),
                is_last_try=self._refusals == REFUSALS,
            )
        )
        if found is None:
            raise error
        if isinstance(found, Resume):
            await asyncio.sleep(found.delay_seconds)
        return found
