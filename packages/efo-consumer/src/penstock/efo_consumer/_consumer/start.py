"""Where a `Consumer` begins: at its checkpoint, and in streams that have none at the start that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.efo_consumer._consumer.checkpoint import merged, within
from penstock.efo_consumer._model.positions import StreamPositions
from penstock.efo_consumer._start.initial import resolve_initial_positions
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.aws import AwsSession
    from penstock.efo_consumer._start.position import StartingPosition


async def begin(
    session: AwsSession,
    streams: Sequence[str],
    saved: StreamPositions | None,
    start: StreamPositions | StartingPosition | str | Mapping[str, StartingPosition | str],
) -> StreamPositions:
    """Give a position in each of the streams.

    Args:
        session: to Kinesis, which is asked only for streams without a checkpoint.
        streams: their names.
        saved: the checkpoint; other streams in it are left out.
        start: for streams without a checkpoint; a mapping has one for each of those.

    Raises:
        EfoConsumerConfigError: a stream has neither a checkpoint nor a start.
        InitialPositionError: the start cannot be resolved.
    """
    given = start if isinstance(start, StreamPositions) else StreamPositions({})
    found = within(given if saved is None else merged(given, saved), streams)
    new = [stream for stream in streams if stream not in found.streams]
    for stream, one in _starts(new, start).items():
        resolved = await asyncio.to_thread(resolve_initial_positions, session, [stream], one)
        found = merged(found, resolved)
    return found


def _starts(
    new: Sequence[str], start: StreamPositions | StartingPosition | str | Mapping[str, StartingPosition | str]
) -> dict[str, StartingPosition | str]:
    if isinstance(start, StreamPositions):
        missing, starts = list(new), {}
    elif isinstance(start, Mapping):
        missing, starts = [stream for stream in new if stream not in start], {**start}
    else:
        return dict.fromkeys(new, start)
    if missing:
        raise EfoConsumerConfigError(option="start", reason=f"has no positions in {', '.join(missing)}")
    return {stream: starts[stream] for stream in new}
