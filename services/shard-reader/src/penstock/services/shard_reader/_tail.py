"""`penstock reader tail`: what is in a stream, on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from penstock.aws import AwsOptions, AwsSession, JsonClient
from penstock.efo_consumer import (
    AvroDecoder,
    Consumer,
    EfoConsumerConfigError,
    GlueDecoder,
    InitialPosition,
    InitialPositionType,
    ReaderConfig,
    ShardPosition,
    StreamPositions,
    list_shards,
    plain_values,
    resolve_initial_positions,
    resolve_named_shards,
)
from penstock.efo_consumer.errors import SchemaDecodeError
from penstock.terminal import POSITIONS, Cell, Row, Screen, add_json_argument, positive_count, seconds_ago

_ROWS_AT_ONCE = 1_000
_DATA_CHARACTERS: Final = 200
_FORMATS: Final = ("text", "raw", "json", "avro", "glue", "kpl")
# Times since the epoch have at most 13 digits, sequence numbers of Kinesis 56.
_SEQUENCE_NUMBER: Final = re.compile(r"\d{20,}")


def add_tail_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `tail` understands beside the flags of AWS."""
    parser.add_argument("streams", nargs="+", metavar="STREAM", help="name of a stream")
    parser.add_argument(
        "--efo",
        metavar="NAME",
        help="read by enhanced fan-out; the stream consumer of this name is registered meanwhile; default: poll",
    )
    parser.add_argument(
        "--from",
        dest="start",
        default="LATEST",
        metavar="POSITION",
        help=f"{POSITIONS}, a time (ISO 8601, or seconds or milliseconds since 1970), or with one --shard the sequence "
        "number of a record: after that record; default: LATEST",
    )
    parser.add_argument(
        "--shard",
        action="append",
        metavar="ID",
        help="only this shard and its successors; 3 means shardId-000000000003",
    )
    parser.add_argument("--key", action="append", metavar="KEY", help="only records of this partition key")
    parser.add_argument("--grep", metavar="REGEX", help="only records whose data matches; the pattern is UTF-8")
    parser.add_argument("--count", type=positive_count, metavar="N", help="stop after N records")
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default="text",
        help="text: one line per record; raw: only the bytes of the data, as Kinesis holds them (whole aggregates), "
        "each with an end of line; json: one object per line, whose data is JSON; avro: the same for Avro with "
        "--schema; glue: the same with schemas from the AWS Glue Schema Registry; kpl: text with the place of each "
        "record in its aggregate",
    )
    parser.add_argument("--schema", type=Path, metavar="FILE", help="the schema for --format avro, as JSON")
    add_json_argument(parser)


async def tail(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> None:
    """Write records as they come.

    Raises:
        EfoConsumerConfigError: a flag is wrong, or does not go with another.
    """
    if arguments.efo == "":
        raise EfoConsumerConfigError(option="--efo", reason="needs the name of a stream consumer")
    left = arguments.count
    takes = _filter(arguments)
    write = _writer(arguments, aws, out)
    start = await _start(arguments, aws)
    config = ReaderConfig(deaggregate=arguments.format != "raw")
    async with Consumer(
        arguments.streams, efo=arguments.efo, start=start, aws=aws, checkpoints=None, config=config
    ) as consumer:
        if arguments.start.upper() == "LATEST" and out.isatty():
            # On the other stream: a program behind `tee` gets records alone.
            sys.stderr.write("waiting for new records at LATEST; --from TRIM_HORIZON shows older ones\n")
        async for batch in consumer:
            # What a large aggregate becomes would take several times as much as dictionaries.
            for at in range(0, batch.records.num_rows, _ROWS_AT_ONCE):
                some = batch.records.slice(at, _ROWS_AT_ONCE).to_pylist()
                rows = [row for row in some if takes(row)][:left]
                # In a thread: the registry of schemas may be asked.
                await asyncio.to_thread(_write_all, write, rows)
                left = None if left is None else left - len(rows)
                if left == 0:
                    return
            out.flush()
            await consumer.commit(batch)


def _write_all(write: Callable[[dict[str, Any]], None], rows: list[dict[str, Any]]) -> None:
    for row in rows:
        write(row)


async def _start(arguments: argparse.Namespace, aws: AwsOptions) -> InitialPosition | StreamPositions:
    text = arguments.start
    ids = [f"shardId-{int(one):012}" if one.isdecimal() else one for one in arguments.shard or ()]
    if _SEQUENCE_NUMBER.fullmatch(text):
        if len(ids) != 1 or len(arguments.streams) != 1:
            raise EfoConsumerConfigError(option="--from", reason="a sequence number needs one stream and one --shard")
        at: InitialPosition | ShardPosition = ShardPosition.after(text)
    elif (ago := seconds_ago(text)) is not None:
        at = InitialPosition(InitialPositionType.AT_TIMESTAMP, round((time.time() - ago) * 1000))
    elif text.upper() in ("LATEST", "TRIM_HORIZON"):
        at = InitialPosition.parse(text)
    else:
        try:
            at = InitialPosition.parse("AT_TIMESTAMP", text)
        except EfoConsumerConfigError as error:
            reason = f"{error.reason}. Other forms: {POSITIONS}, or a sequence number with one --shard"
            raise EfoConsumerConfigError(option="--from", reason=reason) from error
    if not ids:
        assert isinstance(at, InitialPosition)
        return at
    session, found = AwsSession(aws), {}
    async with JsonClient(session) as client:
        for stream in arguments.streams:
            known = [shard.shard_id for shard in await list_shards(client, stream)]
            if missing := sorted({*ids} - {*known}):
                there = f"{', '.join(known[:8])}{', …' if len(known) > 8 else ''}"
                reason = f"{stream} has no {', '.join(missing)} (any more): there are {there}"
                raise EfoConsumerConfigError(option="--shard", reason=reason)
            positions = dict.fromkeys(ids, await _in_shards(session, stream, at))
            found[stream] = await asyncio.to_thread(resolve_named_shards, session, stream, positions)
    return StreamPositions(found)


async def _in_shards(session: AwsSession, stream: str, at: InitialPosition | ShardPosition) -> ShardPosition:
    """The position in a shard that may be none of those at which a query begins there."""
    if isinstance(at, ShardPosition):
        return at
    if at.timestamp_millis is not None:
        return ShardPosition.at_timestamp(at.timestamp_millis)
    if at.type is InitialPositionType.TRIM_HORIZON:
        return ShardPosition.trim_horizon()
    latest = await asyncio.to_thread(resolve_initial_positions, session, [stream], at)
    return next(iter(latest.streams[stream].values()))


def _filter(arguments: argparse.Namespace) -> Callable[[dict[str, Any]], bool]:
    keys = None if arguments.key is None else {*arguments.key}
    try:
        pattern = None if arguments.grep is None else re.compile(arguments.grep.encode())
    except re.error as error:
        raise EfoConsumerConfigError(option="--grep", reason=f"{arguments.grep!r} is not a pattern: {error}") from error

    def takes(row: dict[str, Any]) -> bool:
        return (keys is None or row["partitionKey"] in keys) and (pattern is None or bool(pattern.search(row["data"])))

    return takes


def _writer(arguments: argparse.Namespace, aws: AwsOptions, out: TextIO) -> Callable[[dict[str, Any]], None]:
    """What writes a record in the format that was asked for."""
    if (arguments.schema is None) is (arguments.format == "avro"):
        raise EfoConsumerConfigError(option="--schema", reason="goes with --format avro, which needs it")
    if arguments.format == "raw":
        if arguments.json:
            raise EfoConsumerConfigError(option="--json", reason="is text: --format raw is bytes")
        raw = out.buffer if hasattr(out, "buffer") else sys.stdout.buffer

        def write_raw(row: dict[str, Any]) -> None:
            raw.write(row["data"] + b"\n")

        return write_raw
    screen = Screen(out, as_json=arguments.json or arguments.format in ("json", "avro", "glue"))
    if arguments.format == "json":
        return lambda row: screen.write(_json_line(row))
    if arguments.format == "glue":
        glue = GlueDecoder(aws)
        return lambda row: screen.show_row(Row([], _with_schema(row, glue)))
    if arguments.format == "avro":
        decode = _avro_decoder(arguments.schema)
        return lambda row: screen.show_row(Row([], _decoded(row, decode)))
    return lambda row: screen.show_row(_as_row(row, with_place=arguments.format == "kpl"))


def _avro_decoder(schema_file: Path) -> Callable[[bytes], Any]:
    try:
        decoder = AvroDecoder(schema_file.read_text(), schema_file.name)
    except ImportError as error:
        reason = "avro needs fastavro: pip install 'penstock-shard-reader[avro]'"
        raise EfoConsumerConfigError(option="--format", reason=reason) from error
    except SchemaDecodeError as error:
        raise EfoConsumerConfigError(option="--schema", reason=error.reason) from error
    except (OSError, ValueError) as error:
        raise EfoConsumerConfigError(option="--schema", reason=f"{schema_file} cannot be read: {error}") from error
    return lambda data: plain_values(decoder.decode(data))


def _decoded(row: dict[str, Any], decode: Callable[[bytes], Any]) -> dict[str, Any]:
    """The record with its data decoded; what cannot be is reported in `problem`, and given as it is."""
    document = _as_json(row)
    try:
        value = decode(row["data"])
    except Exception as error:
        return {**document, "problem": f"{type(error).__name__}: {error}"}
    return {**{name: one for name, one in document.items() if name != "dataBase64"}, "data": value}


def _json_line(row: dict[str, Any]) -> str:
    """The record on a line, with its data as it is: what Python makes of it may lose digits, or members."""
    document = _decoded(row, _json_text)
    if "problem" in document:
        return json.dumps(document) + "\n"
    text = document.pop("data")
    return f'{json.dumps(document)[:-1]}, "data": {text}}}\n'


def _json_text(data: bytes) -> str:
    """JSON on a line of ASCII.

    Raises:
        ValueError: the data is not JSON.
    """
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse_constant)
    # Line ends can only be between values, and characters beyond ASCII only in strings.
    on_a_line = re.sub(r"[\r\n]\s*", " ", text.strip())
    return re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], on_a_line)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _with_schema(row: dict[str, Any], glue: GlueDecoder) -> dict[str, Any]:
    """As `_decoded`, with the schema that the record's header names."""
    written_by = {}

    def decode(data: bytes) -> Any:
        value, schema = glue.decode(data)
        written_by["schema"] = f"{schema.registry}/{schema.schema}/{schema.number}"
        return plain_values(value)

    return {**_decoded(row, decode), **written_by}


def _as_row(row: dict[str, Any], *, with_place: bool = False) -> Row:
    """The row in all forms; data that is not text is base64 under another name in JSON."""
    data = row["data"]
    # Control characters of a record must not reach the terminal.
    text = data[:_DATA_CHARACTERS].decode(errors="replace")
    shown = "".join(character if character.isprintable() else "\N{MIDDLE DOT}" for character in text)
    shown += "…" if len(data) > _DATA_CHARACTERS else ""
    arrived = row["approximateArrivalTimestamp"].isoformat(timespec="milliseconds")
    shard, key = f"{row['streamName']}/{row['shardId']}", repr(row["partitionKey"])
    number = f"{row['sequenceNumber']}/{row['subSequenceNumber']}" if with_place else row["sequenceNumber"]
    cells = [Cell(arrived, "dim"), Cell(shard, "cyan"), Cell(number, "dim"), Cell(key, "magenta"), Cell(shown)]
    return Row(cells, _as_json(row), f"{arrived} {shard} {number} {key} {shown}")


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """The row with text in place of what JSON cannot hold."""
    data = row["data"]
    values = {name: value for name, value in row.items() if name != "data"}
    values["approximateArrivalTimestamp"] = values["approximateArrivalTimestamp"].isoformat()
    try:
        return {**values, "data": data.decode()}
    except UnicodeDecodeError:
        return {**values, "dataBase64": base64.b64encode(data).decode()}
