"""Records of a stream, for people who look at a few of them."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from penstock.aws import AwsOptions, AwsSession, BackoffPolicy, JsonClient, retry
from penstock.efo_consumer import (
    WIRE_SCHEMA,
    AvroDecoder,
    EfoConsumerError,
    GlueDecoder,
    InitialPosition,
    StreamIdentity,
    deaggregate,
    plain_values,
)
from penstock.efo_consumer.errors import SchemaDecodeError
from penstock.services.console.errors import ConsoleOptionError
from penstock.terminal import seconds_ago

FORMATS: Final = ("text", "json", "glue", "avro", "kpl")
MOST_RECORDS: Final = 50
MOST_OF_AN_AGGREGATE: Final = 50
"""Of its user records, of which a MiB may hold hundreds of thousands."""
_MOST_LOOKS: Final = 2
"""At a time: each may hold an answer of 10 MiB, and what a MiB of aggregates becomes."""
_MOST_CALLS: Final = 4
_MOST_CHARACTERS: Final = 4_000
_SEQUENCE_NUMBER: Final = re.compile(r"\d{20,130}")
_STREAM: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, kw_only=True)
class ShownRecord:
    """A record as it is shown; nothing in it is longer than a page can bear."""

    arrived: str
    partition_key: str
    sequence_number: str
    text: str
    size_bytes: int
    problem: str = ""
    """Why it could not be decoded; its bytes are shown as text then."""


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What a look brought."""

    records: Sequence[ShownRecord]
    after: str | None
    """Sequence number behind which the next look goes on; None where there was no record."""
    millis_behind_latest: int | None


class RecordsSource:
    """Looks at records by GetRecords, whose quota (5 calls a second and shard) it shares with all that poll.

    Args:
        options: how to reach AWS.
        schemas: folder with `STREAM.avsc`, the schemas by which records are decoded as Avro; None for none.
    """

    def __init__(self, options: AwsOptions, schemas: Path | None = None) -> None:
        self._options = options
        self._schemas = schemas
        self._looks = asyncio.Semaphore(_MOST_LOOKS)

    async def look(self, stream: str, shard_id: str, start: str, shown_as: str) -> Looked:
        """The next records from a position on, 50 at most.

        Args:
            stream: its name or ARN.
            shard_id: of one of its shards.
            start: TRIM_HORIZON, LATEST, a time ago such as `-15m`, a time, or a sequence number: behind it.
            shown_as: one of FORMATS.

        Raises:
            ConsoleOptionError: a field is invalid; the error names it.
            AwsError: Kinesis does not answer, or refuses.
        """
        position = _position(start)
        decode = self._decoder(stream, shown_as)
        identity = StreamIdentity.of(stream)
        named = {"StreamARN": identity.arn} if identity.arn else {"StreamName": identity.name}
        async with self._looks, JsonClient(AwsSession(self._options)) as client:

            async def call(operation: str, **parameters: Any) -> dict[str, Any]:
                return await retry(lambda: client.call(operation, parameters), BackoffPolicy())

            asked = await call("GetShardIterator", ShardId=shard_id, **named, **position)
            iterator, answer = asked.get("ShardIterator"), dict[str, Any]()
            for _ in range(_MOST_CALLS):
                if not iterator:
                    break
                answer = await call("GetRecords", ShardIterator=iterator, Limit=MOST_RECORDS)
                iterator = answer.get("NextShardIterator")
                if answer["Records"] or answer.get("MillisBehindLatest") == 0:
                    break
            found = answer.get("Records", [])
            # In a thread: a large aggregate takes a second, and the registry of schemas may be asked.
            records = await asyncio.to_thread(_shown, found, decode, is_whole=shown_as != "text")
        return Looked(
            records=records,
            after=found[-1]["SequenceNumber"] if found else None,
            millis_behind_latest=answer.get("MillisBehindLatest"),
        )

    def formats(self) -> Sequence[str]:
        """Those of FORMATS that can be had here."""
        has_avro = self._schemas is not None and importlib.util.find_spec("fastavro") is not None
        return [one for one in FORMATS if one != "avro" or has_avro]

    def _decoder(self, stream: str, shown_as: str) -> Callable[[bytes], str]:
        if shown_as not in self.formats():
            raise ConsoleOptionError("as", f"{shown_as[:50]!r} is not one of {', '.join(self.formats())}")
        if shown_as == "json":
            return lambda data: _json_text(json.loads(data))
        if shown_as == "glue":
            glue = GlueDecoder(self._options)
            return lambda data: _json_text(glue.decode(data).value)
        if shown_as != "avro":
            return _text
        name = stream.rpartition("/")[2]
        path = self._schemas / f"{name}.avsc" if self._schemas is not None and _STREAM.fullmatch(name) else None
        if path is None or not path.is_file():
            raise ConsoleOptionError("as", f"the folder of schemas has no {name[:128]}.avsc")
        return _avro_decoder(path)


def _position(start: str) -> dict[str, Any]:
    text = start.strip()
    if _SEQUENCE_NUMBER.fullmatch(text):
        return {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": text}
    if text.upper() in ("TRIM_HORIZON", "LATEST"):
        return {"ShardIteratorType": text.upper()}
    if (ago := seconds_ago(text)) is not None:
        return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": time.time() - ago}
    try:
        moment = InitialPosition.parse("AT_TIMESTAMP", text)
    except EfoConsumerError as error:
        reason = f"{text[:100]!r} is not TRIM_HORIZON, a time ago (-15m), a time (ISO 8601) or a sequence number"
        raise ConsoleOptionError("from", reason) from error
    assert moment.timestamp_millis is not None
    return {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": moment.timestamp_millis / 1000}


def _shown(found: Sequence[dict[str, Any]], decode: Callable[[bytes], str], *, is_whole: bool) -> list[ShownRecord]:
    """The records, or the user records in them where aggregates are taken apart."""
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "data": base64.b64decode(one["Data"]),
                "partitionKey": one["PartitionKey"],
                "sequenceNumber": one["SequenceNumber"],
                "approximateArrivalTimestamp": datetime.fromtimestamp(one["ApproximateArrivalTimestamp"], UTC),
                "encryptionType": one.get("EncryptionType"),
            }
            for one in found
        ],
        schema=WIRE_SCHEMA,
    )
    shown: list[ShownRecord] = []
    for at in range(batch.num_rows):
        rows = deaggregate(batch.slice(at, 1)) if is_whole else batch.slice(at, 1)
        of_one = [_record(row, decode) for row in rows.slice(0, MOST_OF_AN_AGGREGATE).to_pylist()]
        if rows.num_rows > len(of_one):
            left = f"the aggregate holds {rows.num_rows - len(of_one):,} more records, which are not shown"
            of_one[-1] = replace(of_one[-1], problem="; ".join(filter(None, [of_one[-1].problem, left])))
        shown += of_one
    return shown


def _record(row: dict[str, Any], decode: Callable[[bytes], str]) -> ShownRecord:
    data, problem = row["data"], ""
    try:
        text = decode(data)
    except Exception as error:
        # Whatever a record holds, the others are shown.
        text, problem = _text(data), f"{type(error).__name__}: {error}"[:300]
    number = row["sequenceNumber"]
    if row.get("subSequenceNumber"):
        number = f"{number}/{row['subSequenceNumber']}"
    return ShownRecord(
        arrived=row["approximateArrivalTimestamp"].isoformat(timespec="milliseconds"),
        partition_key=row["partitionKey"] or "",
        sequence_number=number,
        text=text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…",
        size_bytes=len(data),
        problem=problem,
    )


def _text(data: bytes) -> str:
    text = data[: 2 * _MOST_CHARACTERS].decode(errors="replace")
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{MIDDLE DOT}" for one in text)


def _avro_decoder(path: Path) -> Callable[[bytes], str]:
    try:
        decoder = AvroDecoder(path.read_text(), path.name)
    except SchemaDecodeError as error:
        raise ConsoleOptionError("as", error.reason) from error
    except (OSError, ValueError) as error:
        raise ConsoleOptionError("as", f"{path.name} cannot be read: {error}") from error
    return lambda data: _json_text(decoder.decode(data))


def _json_text(value: Any) -> str:
    return json.dumps(plain_values(value), ensure_ascii=False, indent=1)
