"""PutRecords: requests in JSON or CBOR, and failures from answers."""

import logging
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
import pybase64

from penstock.async_sink._core.entries import EntryFailure
from penstock.async_sink._core.runs import BatchEntries, EntryRun, made
from penstock.async_sink._core.settlement import ResultHandler
from penstock.async_sink._destinations.aws import (
    AwsDestination,
    RecordResult,
    ServiceApi,
    failures_by_place,
    is_success,
    look_up,
)
from penstock.async_sink._destinations.kinesis.cbor import (
    CborRecords,
    before_records,
    encode_put_records,
    is_success_in_cbor,
)
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry, PartitionKey
from penstock.async_sink._destinations.kinesis.rows import KinesisEntries, columns_of
from penstock.aws import AwsOptions, AwsServiceError, AwsSession, ErrorKind, JsonClient, as_json, classify

# Up to about this record size, msgspec's base64 is faster than a call of the SIMD version per record.
_SIMD_WORTHWHILE_BYTES = 200
# Entries that the size of all is estimated from: a wrong guess costs time only.
_SAMPLE = 32

# A record that was refused has no sequence number.
_FAILED_COUNT, _RECEIPT = b'"FailedRecordCount"', b'"SequenceNumber"'
_SHARD_ID = re.compile(r"\bshardId-\d+\b")


class _Result(RecordResult):
    shard_id: str | None = msgspec.field(name="ShardId", default=None)

    @property
    def shard(self) -> str | None:
        # A refused record has no field for its shard, but the message names it.
        if self.shard_id is not None or self.error_message is None:
            return self.shard_id
        found = _SHARD_ID.search(self.error_message)
        return found[0] if found else None


class _Results(msgspec.Struct):
    records: list[_Result] = msgspec.field(name="Records")
    failed_record_count: int | None = msgspec.field(name="FailedRecordCount", default=None)


def _json_strings(texts: list[str]) -> list[bytes]:
    """Each text in JSON, without the quotation marks."""
    together = _encoder.encode(texts)
    if b'\\"' in together:
        # One that ends in a quotation mark and a comma looks like the end of a string before it.
        return [_encoder.encode(text)[1:-1] for text in texts]
    return together[2:-2].split(b'","')


_data_of = attrgetter("data")
_encoder = msgspec.json.Encoder()
_results_decoder = msgspec.json.Decoder(_Results)


CBOR_TYPE = "application/x-amz-cbor-1.1"


class PutRecordsCodec:
    """Requests of PutRecords for one stream, in JSON or CBOR, and answers in either format."""

    def __init__(self, parameter: tuple[str, str]) -> None:
        """`parameter` is the name and value of the parameter that names the stream."""
        self._parameter = parameter
        self._head = _encoder.encode(dict([parameter]))[:-1] + b',"Records":'

    def encode_cbor(self, entries: Sequence[KinesisRequestEntry]) -> Sequence[bytes | memoryview]:
        """Encode a request in CBOR, in parts: rows that are CBOR already are not copied."""
        parts = entries.parts if isinstance(entries, BatchEntries) else ()
        records = [
            part.rows.records(part.start, part.start + part.count)
            for part in parts
            if isinstance(part, EntryRun) and isinstance(part.rows, CborRecords)
        ]
        if parts and len(records) == len(parts):
            return (before_records(self._parameter, len(entries)), *records)
        return (encode_put_records(self._parameter, *columns_of(entries)),)

    def encode(self, entries: Sequence[KinesisRequestEntry]) -> bytes:
        """Encode a request in JSON."""
        entries = entries if isinstance(entries, list) else list(entries)
        sample = entries[:: 1 + len(entries) // _SAMPLE]
        if sum(map(len, map(_data_of, sample))) <= _SIMD_WORTHWHILE_BYTES * len(sample):
            return b"".join((self._head, _encoder.encode(entries), b"}"))
        data, keys, hash_keys = columns_of(entries)
        # One join of all parts, so that no part of the body is copied twice.
        count = len(data)
        parts = [b'","PartitionKey":"'] * (4 * count)
        parts[0::4] = [b'"},{"Data":"'] * count
        parts[0] = self._head + b'[{"Data":"'
        parts[1::4] = map(pybase64.b64encode, data)
        parts[3::4] = _json_strings(keys)
        if any(hash_keys):
            for place, hash_key in enumerate(hash_keys):
                if hash_key is not None:
                    parts[4 * place + 3] += b'","ExplicitHashKey":' + _encoder.encode(hash_key)[:-1]
        parts.append(b'"}]}')
        return b"".join(parts)

    def failures(self, answer: bytes, entry_count: int) -> list[EntryFailure]:
        """The entries that were not accepted, by place; the answer is in the order of the request.

        Raises:
            ValueError: the answer is not of PutRecords, or about another number of records.
        """
        if is_success_in_cbor(answer, entry_count) or is_success(answer, _FAILED_COUNT, _RECEIPT, entry_count):
            return []
        read = _results_decoder.decode(as_json(answer))
        return failures_by_place("PutRecords", read.records, entry_count, failed_count=read.failed_record_count)

    def shards(self, answer: bytes) -> list[str | None]:
        """The shard of each record of the request, accepted or not; None where the answer does not name it.

        Raises:
            ValueError: the answer is not of PutRecords.
        """
        return [result.shard for result in _results_decoder.decode(as_json(answer)).records]


WireFormat: TypeAlias = Literal["cbor", "json"]

_logger = logging.getLogger(__name__)
# Domains of all partitions. Other endpoints get JSON: they may silently treat a blob as base64.
_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws", ".api.amazonwebservices.com.cn")
# Error codes of servers that do not support CBOR.
_NOT_UNDERSTOOD = frozenset({"SerializationException", "UnknownOperationException", "UnsupportedMediaTypeException"})
_NOT_UNDERSTOOD_STATUS = frozenset({404, 415})


def default_format(url: str) -> WireFormat:
    """The format for an endpoint: CBOR for AWS, JSON for other servers."""
    return "cbor" if (urlsplit(url).hostname or "").endswith(_DOMAINS) else "json"


class KinesisStream(AwsDestination[KinesisRequestEntry]):
    """A stream, written to by PutRecords; without a `wire_format` the endpoint decides."""

    api = ServiceApi(service="kinesis", target_prefix="Kinesis_20131202")

    def __init__(
        self,
        aws: AwsOptions | AwsSession,
        *,
        stream_name: str | None,
        stream_arn: str | None,
        wire_format: WireFormat | None = None,
        partition_key: PartitionKey | None = None,
    ) -> None:
        self._entries = KinesisEntries(partition_key)
        super().__init__(aws, stream_name or (stream_arn or "").rpartition("/")[2], self._entries)
        parameter = ("StreamName", stream_name or "") if stream_arn is None else ("StreamARN", stream_arn)
        self.parameter = dict([parameter])
        """The parameter that names the stream."""
        self.codec = PutRecordsCodec(parameter)
        self._format = wire_format

    async def learn(self, client: JsonClient) -> None:
        """Choose the format from the address of the endpoint."""
        if self._format is None:
            self._format = default_format(client.url)
        self._entries.leave_in_cbor = self._format == "cbor"

    async def status(self, client: JsonClient) -> str | None:
        """See `AwsDestination.status`. Without permission for DescribeStreamSummary it is unknown."""
        try:
            answer = await look_up(client, "DescribeStreamSummary", self.parameter)
        except AwsServiceError as error:
            if classify(error) is ErrorKind.FATAL:
                return None
            raise
        return str(answer["StreamDescriptionSummary"]["StreamStatus"])

    async def send(
        self,
        client: JsonClient,
        entries: Sequence[KinesisRequestEntry],
        result_handler: ResultHandler[KinesisRequestEntry],
    ) -> None:
        """Shards are read if a record was refused, or if the strategy uses them."""
        answer = await self.put(client, entries)
        failures = self.codec.failures(answer, len(entries))
        shards = self.codec.shards(answer) if failures or result_handler.wants_lanes else ()
        result_handler.retry_failures(failures, lanes=shards)

    async def put(self, client: JsonClient, entries: Sequence[KinesisRequestEntry]) -> bytes:
        """Call PutRecords and return the body of the answer, for `failures` and `shards` of the codec.

        An endpoint that does not understand CBOR gets JSON from then on.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came.
        """
        if self._format == "cbor":
            try:
                return await client.submit("PutRecords", self.codec.encode_cbor(entries), content_type=CBOR_TYPE)
            except AwsServiceError as error:
                if error.code not in _NOT_UNDERSTOOD and error.status not in _NOT_UNDERSTOOD_STATUS:
                    raise
                _logger.warning("%s takes no CBOR (%s), and gets JSON from now on", client.url, error.code)
                self._format, self._entries.leave_in_cbor = "json", False
        return await client.submit("PutRecords", self.codec.encode(made(entries)))
