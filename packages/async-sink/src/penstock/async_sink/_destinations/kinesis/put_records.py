"""Calls of PutRecords, in the format that the endpoint understands."""

import logging
from collections.abc import Sequence
from typing import ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit

from penstock.async_sink._core.batches import BatchEntries, made
from penstock.async_sink._core.runs import EntryRun
from penstock.async_sink._destinations.kinesis.arrow import columns_of
from penstock.async_sink._destinations.kinesis.cbor import before_records, encode_put_records
from penstock.async_sink._destinations.kinesis.cbor_rows import CborRecords
from penstock.async_sink._destinations.kinesis.entry import KinesisRequestEntry
from penstock.async_sink._destinations.kinesis.wire import PutRecordsCodec
from penstock.aws import AwsServiceError, JsonClient

WireFormat: TypeAlias = Literal["cbor", "json"]

_logger = logging.getLogger(__name__)
# Of all partitions. Others may take a blob for base64, and say nothing: they get JSON.
_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".amazonaws.eu", ".api.aws", ".api.amazonwebservices.com.cn")
# In which servers that do not speak CBOR say so.
_NOT_UNDERSTOOD = frozenset({"SerializationException", "UnknownOperationException", "UnsupportedMediaTypeException"})
_NOT_UNDERSTOOD_STATUS = frozenset({404, 415})


class CborPutRecordsCodec(PutRecordsCodec):
    """Bodies of PutRecords for one stream, in CBOR."""

    content_type: ClassVar[str | None] = "application/x-amz-cbor-1.1"

    def __init__(self, *, stream_name: str | None, stream_arn: str | None) -> None:
        super().__init__(stream_name=stream_name, stream_arn=stream_arn)
        self._stream = ("StreamName", stream_name or "") if stream_arn is None else ("StreamARN", stream_arn)

    def encode(self, entries: Sequence[KinesisRequestEntry]) -> bytes:
        """The request's body."""
        return b"".join(self.encode_parts(entries))

    def encode_parts(self, entries: Sequence[KinesisRequestEntry]) -> Sequence[bytes | memoryview]:
        """The request's body in parts: rows that were written in CBOR before are not copied."""
        parts = entries.parts if isinstance(entries, BatchEntries) else ()
        records = [
            part.rows.records(part.start, part.start + part.count)
            for part in parts
            if isinstance(part, EntryRun) and isinstance(part.rows, CborRecords)
        ]
        if parts and len(records) == len(parts):
            return (before_records(self._stream, len(entries)), *records)
        return (encode_put_records(self._stream, *columns_of(entries)),)


def default_format(url: str) -> WireFormat:
    """The format for an endpoint: CBOR for the service itself, JSON for what stands in for it."""
    return "cbor" if (urlsplit(url).hostname or "").endswith(_DOMAINS) else "json"


class PutRecords:
    """Calls of PutRecords for one stream; without a `wire_format` the endpoint decides."""

    def __init__(self, *, stream_name: str | None, stream_arn: str | None, wire_format: WireFormat | None) -> None:
        self._json = PutRecordsCodec(stream_name=stream_name, stream_arn=stream_arn)
        self._cbor = CborPutRecordsCodec(stream_name=stream_name, stream_arn=stream_arn)
        self._format = wire_format

    async def call(self, client: JsonClient, entries: Sequence[KinesisRequestEntry]) -> bytes:
        """Call, and give the answer's body, for a codec's `failures` and `shards`.

        An endpoint that does not understand CBOR gets JSON, from then on.

        Raises:
            AwsServiceError: the service answered with an error.
            AwsConnectionError: no answer came.
        """
        if self.is_in_cbor(client):
            codec = self._cbor
            try:
                return await client.call_raw("PutRecords", codec.encode_parts(entries), content_type=codec.content_type)
            except AwsServiceError as error:
                if error.code not in _NOT_UNDERSTOOD and error.status not in _NOT_UNDERSTOOD_STATUS:
                    raise
                _logger.warning("%s takes no CBOR (%s), and gets JSON from now on", client.url, error.code)
                self._format = "json"
        return await client.call_raw("PutRecords", self._json.encode(made(entries)))

    def is_in_cbor(self, client: JsonClient) -> bool:
        """Whether the next call is in CBOR."""
        if self._format is None:
            self._format = default_format(client.url)
        return self._format == "cbor"

    @property
    def codec(self) -> PutRecordsCodec:
        """Reads answers, whatever was asked in."""
        return self._json
