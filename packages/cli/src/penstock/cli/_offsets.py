"""`penstock offsets`: the offsets of a Spark query's checkpoint, shown and reset."""

from __future__ import annotations

import argparse
import getpass
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.cli._aws import add_aws_arguments, aws_options, given_aws_flags, missing, run_calls
from penstock.terminal import (
    POSITIONS,
    Cell,
    Column,
    ExitCode,
    Parser,
    Row,
    Screen,
    Table,
    add_json_argument,
    positive_seconds,
    seconds_ago,
)

if TYPE_CHECKING:
    from penstock.aws import AwsSession
    from penstock.efo_consumer import ShardPosition, SparkCheckpoint, StreamPositions

PROG: Final = "penstock offsets"
_WATCH_SECONDS: Final = 10.0
_BATCH: Final = re.compile(r"batch:(\d+)")
_SEQUENCE_NUMBER: Final = re.compile(r"\d{20,}")
_SHOWN: Final = (
    Column("BATCH", justify="right"),
    Column("SOURCE", justify="right"),
    Column("STREAM"),
    Column("SHARD"),
    Column("POSITION"),
    Column("REACHED"),
)
_MOVED: Final = (Column("SOURCE", justify="right"), Column("STREAM"), Column("SHARD"), Column("FROM"), Column("TO"))
_EXITS: Final = "exit codes: 0 done or shown, 1 refused, 2 wrong usage or no checkpoint, 3 AWS cannot be reached"


class OffsetsError(Exception):
    """What was asked for cannot be done to this checkpoint."""


def main(argv: Sequence[str]) -> int:
    """Show, compare or reset the offsets of a checkpoint. Returns the exit code."""
    parser = Parser(
        prog=PROG,
        description="Show, compare and reset the offsets in the checkpoint of a Spark query. It does not need "
        "Spark. LOCATION is the query's checkpointLocation: a folder, or s3://BUCKET/PREFIX.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="the positions of a micro-batch", epilog=_EXITS)
    show.add_argument("--batch", type=int, metavar="N", help="number of the micro-batch; default: the last one")
    diff = commands.add_parser("diff", help="what moved between two micro-batches", epilog=_EXITS)
    diff.add_argument("--from", dest="start", type=int, metavar="N", help="default: the one before --to")
    diff.add_argument("--to", type=int, metavar="N", help="default: the last one")
    reset = commands.add_parser(
        "reset",
        help="let a stopped query continue from another position",
        description="Let a stopped query continue from other positions, as if an empty micro-batch had ended there. "
        "Without --execute, only show what would change. Nothing is overwritten: the next micro-batch is logged and "
        "committed, and penstock-reset in the checkpoint keeps the offsets from before. Refused: a query that keeps "
        "state, a query whose last micro-batch is unfinished, and with --execute a query that runs.",
        epilog=_EXITS,
    )
    reset.add_argument(
        "--to",
        required=True,
        metavar="POSITION",
        help=f"{POSITIONS}, a time (ISO 8601, or seconds or milliseconds since 1970), batch:N (the end of that "
        "micro-batch), or with --shard the sequence number of a record: after that record",
    )
    reset.add_argument("--stream", action="append", metavar="NAME", help="only this stream; default: all")
    reset.add_argument("--shard", metavar="ID", help="only this shard; --to must be a sequence number")
    reset.add_argument("--source", type=int, metavar="N", help="only this source of the query, from 0; default: all")
    reset.add_argument("--execute", action="store_true", help="change the checkpoint; without it, only show the change")
    reset.add_argument(
        "--give-up-batch",
        action="store_true",
        help="abandon an unfinished last micro-batch: rows that it has not written are skipped",
    )
    reset.add_argument(
        "--watch",
        type=positive_seconds,
        default=_WATCH_SECONDS,
        metavar="SECONDS",
        help=f"watch the checkpoint for this time, to detect a running query; default: {_WATCH_SECONDS:g}",
    )
    for command in (show, diff, reset):
        command.add_argument("location", metavar="LOCATION")
        add_json_argument(command)
        add_aws_arguments(command)
    arguments = parser.parse_args(argv)
    is_s3 = arguments.location.startswith(("s3://", "s3a://", "s3n://"))
    # A reset may have to ask where the records of a time are.
    if not is_s3 and arguments.command != "reset" and (idle := given_aws_flags(arguments)):
        parser.error(f"{idle[0]} needs a LOCATION s3://BUCKET/PREFIX: a folder is read without AWS")
    try:
        import penstock.efo_consumer  # noqa: F401  # it reads checkpoints
    except ImportError as error:
        return missing(PROG, error)
    run = {"show": _show, "diff": _diff, "reset": _reset}[arguments.command]

    def calls() -> int:
        from penstock.efo_consumer import CheckpointError, SparkCheckpoint

        try:
            checkpoint = SparkCheckpoint(arguments.location, _session(arguments) if is_s3 else None)
            checkpoint.numbers()
        except CheckpointError as error:
            if error.__cause__ is not None:
                raise
            # AWS refused nothing: the location has no checkpoint.
            sys.stderr.write(f"{PROG} {arguments.command}: {error}\n")
            return ExitCode.USAGE
        return run(checkpoint, arguments, Screen(sys.stdout, as_json=arguments.json))

    return run_calls(f"{PROG} {arguments.command}", arguments, calls)


def _session(arguments: argparse.Namespace) -> AwsSession:
    from penstock.aws import AwsSession

    return AwsSession(aws_options(arguments))


def _show(checkpoint: SparkCheckpoint, arguments: argparse.Namespace, screen: Screen) -> int:
    number = checkpoint.numbers()[-1] if arguments.batch is None else arguments.batch
    batch = checkpoint.batch(number)
    state = "done" if batch.is_committed else "planned, not done"
    rows = []
    for source, positions in _positions(checkpoint, number).items():
        for stream, shard, at in _each(positions):
            reached = _moment(at.known_millis)
            document = {
                "batch": number,
                "isDone": batch.is_committed,
                "source": source,
                "streamName": stream,
                "shardId": shard,
                "position": at.to_json(),
            }
            rows.append(Row([str(number), str(source), stream, shard, str(at), reached], document))
    screen.show(Table(columns=_SHOWN, rows=rows, title=f"micro-batch {number}: {state}", empty="no source of Kinesis"))
    return ExitCode.OK if rows else ExitCode.FAILED


def _diff(checkpoint: SparkCheckpoint, arguments: argparse.Namespace, screen: Screen) -> int:
    numbers = checkpoint.numbers()
    last = numbers[-1] if arguments.to is None else arguments.to
    earlier = [number for number in numbers if number < last]
    if arguments.start is None and not earlier:
        raise OffsetsError(f"{last} is the first micro-batch: see {PROG} show")
    first = earlier[-1] if arguments.start is None else arguments.start
    _show_moves(screen, _positions(checkpoint, first), _positions(checkpoint, last), "nothing moved")
    return ExitCode.OK


def _reset(checkpoint: SparkCheckpoint, arguments: argparse.Namespace, screen: Screen) -> int:
    activity = checkpoint.activity()
    number = checkpoint.check_reset(give_up_batch=arguments.give_up_batch).number
    known = _positions(checkpoint, number)
    if arguments.source is not None:
        if arguments.source not in known:
            raise OffsetsError(f"unknown source {arguments.source}; the sources of Kinesis are {[*known]}")
        known = {arguments.source: known[arguments.source]}
    wanted = {source: _moved(checkpoint, arguments, source, positions) for source, positions in known.items()}
    _show_moves(screen, known, wanted, "nothing changes")
    if wanted == known:
        return ExitCode.OK
    if not arguments.execute:
        screen.say("--execute does it", "bold")
        return ExitCode.OK
    # A query that waits for records writes nothing, too: this finds one that is busy, not each that runs.
    time.sleep(arguments.watch)
    if checkpoint.activity() != activity:
        raise OffsetsError(f"a query writes to {checkpoint.location}: stop it first")
    note = f"penstock offsets reset --to {arguments.to}, by {getpass.getuser()}"
    added = checkpoint.reset(wanted, give_up_batch=arguments.give_up_batch, note=note)
    sys.stderr.write(f"{PROG} reset: micro-batch {added} leads there; --to batch:{number} leads back\n")
    return ExitCode.OK


def _moved(
    checkpoint: SparkCheckpoint, arguments: argparse.Namespace, source: int, known: StreamPositions
) -> StreamPositions:
    """The positions with those replaced that are to be others."""
    from penstock.efo_consumer import (
        EfoConsumerConfigError,
        InitialPosition,
        InitialPositionType,
        ShardPosition,
        StreamPositions,
    )
    from penstock.efo_consumer import resolve_initial_positions as resolve

    text = arguments.to
    streams = arguments.stream or [*known.streams]
    if unknown := sorted({*streams} - known.streams.keys()):
        raise OffsetsError(f"{', '.join(unknown)} is not a stream of source {source}: {', '.join(known.streams)}")
    if _SEQUENCE_NUMBER.fullmatch(text):
        if arguments.shard is None or len(streams) != 1:
            raise OffsetsError("--to with a sequence number needs --shard, and --stream where there are several")
        (stream,) = streams
        if known.get(stream, arguments.shard) is None:
            raise OffsetsError(f"{arguments.shard} is not in the checkpoint: {', '.join(known.streams[stream])}")
        shards = {**known.streams[stream], arguments.shard: ShardPosition.after(text)}
        return StreamPositions({**known.streams, stream: shards}, known.created)
    if arguments.shard is not None:
        raise OffsetsError("--shard goes with a sequence number: related shards would follow at another place")
    if batch := _BATCH.fullmatch(text):
        found = _positions(checkpoint, int(batch[1]))[source]
        if gone := sorted({*streams} - found.streams.keys()):
            raise OffsetsError(f"micro-batch {batch[1]} does not know {', '.join(gone)}")
    else:
        if (ago := seconds_ago(text)) is not None:
            start = InitialPosition(InitialPositionType.AT_TIMESTAMP, round((time.time() - ago) * 1000))
        elif text.upper() in ("LATEST", "TRIM_HORIZON"):
            start = InitialPosition.parse(text)
        else:
            try:
                start = InitialPosition.parse("AT_TIMESTAMP", text)
            except EfoConsumerConfigError as error:
                reason = f"{error.reason}. Other forms: {POSITIONS}, batch:N, or a sequence number with --shard"
                raise EfoConsumerConfigError(option="to", reason=reason) from error
        found = resolve(_session(arguments), streams, start)
    new = {stream: found.streams[stream] for stream in streams}
    created = {stream: found.created[stream] for stream in streams if stream in found.created}
    return StreamPositions({**known.streams, **new}, {**known.created, **created})


def _positions(checkpoint: SparkCheckpoint, number: int) -> dict[int, StreamPositions]:
    return {source: checkpoint.parse(one) for source, one in checkpoint.batch(number).documents().items()}


def _each(positions: StreamPositions) -> Iterator[tuple[str, str, ShardPosition]]:
    for stream, shards in sorted(positions.streams.items()):
        for shard, at in sorted(shards.items()):
            yield stream, shard, at


def _show_moves(
    screen: Screen, start: Mapping[int, StreamPositions], end: Mapping[int, StreamPositions], empty: str
) -> None:
    rows = []
    for source in sorted(start.keys() | end.keys()):
        before = {(stream, shard): at for stream, shard, at in _each(start[source])} if source in start else {}
        after = {(stream, shard): at for stream, shard, at in _each(end[source])} if source in end else {}
        for stream, shard in sorted(before.keys() | after.keys()):
            one, other = before.get((stream, shard)), after.get((stream, shard))
            if one == other:
                continue
            document = {
                "source": source,
                "streamName": stream,
                "shardId": shard,
                "from": None if one is None else one.to_json(),
                "to": None if other is None else other.to_json(),
            }
            shown = [Cell("-" if at is None else str(at)) for at in (one, other)]
            rows.append(Row([str(source), stream, shard, *shown], document))
    screen.show(Table(columns=_MOVED, rows=rows, empty=empty))


def _moment(millis: int | None) -> str:
    return "-" if millis is None else datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="seconds")
