"""Where a `Consumer` begins: at its checkpoint, and in streams that have none at the start that it was given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.efo_consumer._initial import resolve_initial_positions
from penstock.efo_consumer._positions import StreamPositions
from penstock.efo_consumer.errors import EfoConsumerConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.aws import AwsSession
    from penstock.efo_consumer._starting_position import StartingPosition


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
    given = start.streams if isinstance(start, StreamPositions) else {}
    found = {**given, **({} if saved is None else saved.streams)}
    known = {name: shards for name, shards in found.items() if name in streams}
    new = [stream for stream in streams if stream not in known]
    for stream, one in _starts(new, start).items():
        resolved = await asyncio.to_thread(resolve_initial_positions, session, [stream], one)
        known |= resolved.streams
    return StreamPositions(known)


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
