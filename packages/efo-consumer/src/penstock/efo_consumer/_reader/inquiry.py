"""What reading a shard asks of the rule of continuity: whether records are lost, and what a refusal means."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.efo_consumer._continuity.guard import ContinuitySource, Loss, Resume, ShardGuard, judge_refusal
from penstock.efo_consumer._model.shards import StreamIdentity
from penstock.efo_consumer._publish.condition import NoteSign, unnoted
from penstock.efo_consumer._publish.diagnosis import NOT_FOUND
from penstock.efo_consumer._publish.retries import bear

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from datetime import timedelta

    from penstock.aws import AwsError
    from penstock.efo_consumer._model.positions import ShardPosition
    from penstock.efo_consumer.errors import EfoConsumerError

_T = TypeVar("_T")

REFUSALS: Final = 5
"""How often in a row a position may be refused before the error is raised."""


class ShardInquiry:
    """The questions that one reading of a shard asks about its position. Failures that may pass are retried.

    Args:
        source: Kinesis.
        stream: name or ARN.
        shard_id: the shard.
        created_millis: when the stream of the positions was created, if known.
        patience: gives how long a question is retried; zero for ever.
        note: takes failures that are retried.
        standing: gives the shards that have positions, which the successors of a shard that is gone are not among;
            None where somebody else decides about successors.
    """

    def __init__(
        self,
        source: ContinuitySource,
        stream: str,
        shard_id: str,
        *,
        created_millis: int | None,
        patience: Callable[[], timedelta],
        note: NoteSign = unnoted,
        standing: Callable[[], Collection[str] | None] = tuple,
    ) -> None:
        self._source = source
        self._stream = stream
        self._shard_id = shard_id
        self._created_millis = created_millis
        self._patience = patience
        self._note = note
        self._standing = standing
        self.refusals = 0
        """In a row; set to 0 when the shard came on from its position."""
        self.guard = ShardGuard(source, stream, shard_id, created_millis=created_millis)

    async def ask(self, question: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat a question for as long as the patience lasts.

        Raises:
            RecordPublisherRetriesError: every attempt failed for as long.
            EfoConsumerError, AwsError: those of the question that no other attempt cures.
        """
        return await bear(
            question,
            stream=StreamIdentity.of(self._stream).name,
            shard_id=self._shard_id,
            operation="asking Kinesis what became of a position",
            patience_seconds=self._patience().total_seconds(),
            note=self._note,
            service_seconds=lambda: self._source.service_millis() / 1000,
        )

    async def check(self, after: ShardPosition, now_millis: int) -> Loss | None:
        """See `ShardGuard.check`."""
        return await self.ask(partial(self.guard.check, after, now_millis))

    async def prove(self, tell: Callable[[Loss, ShardPosition], None]) -> None:
        """See `ShardGuard.prove`."""
        await self.ask(partial(self.guard.prove, tell))

    async def refused(
        self, error: EfoConsumerError | AwsError, begin: ShardPosition, after: ShardPosition
    ) -> Loss | Resume:
        """Decide about an error of reading; waits where the answer is to resume later.

        Args:
            error: what reading ended with.
            begin: where Kinesis was asked to begin.
            after: up to where everything was delivered, with its facts.

        Raises:
            EfoConsumerError, AwsError: `error`, if it is not about the position or came too often; or Kinesis could
                not be asked.
        """
        code = getattr(error, "code", type(error).__name__)
        self.refusals += 1
        # A position that was chosen because it cannot be refused is tried once; its shard may go meanwhile.
        if self.refusals > (REFUSALS if begin == after or code == NOT_FOUND else 1):
            raise error
        found = await self.ask(
            partial(
                judge_refusal,
                self._source,
                self._stream,
                self._shard_id,
                after,
                code,
                created_millis=self._created_millis,
                standing=self._standing(),
                is_last_try=self.refusals == REFUSALS,
            )
        )
        if found is None:
            raise error
        if isinstance(found, Resume):
            await asyncio.sleep(found.delay_seconds)
        return found
