"""Amazon Data Firehose, as a producer sees it: delivery streams that write into a folder.

Records of a delivery stream go into files in a folder of its name, one after the other with nothing between them, as
Firehose writes them to S3. A file ends, and the next begins, at the size hint of the destination (5 MiB by default).
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.emulator._faults import Target
from penstock.emulator._http.dispatch import whole_response
from penstock.emulator._operations.validation import validate_request
from penstock.emulator._state.quotas import TokenBucket
from penstock.emulator.errors import KinesisError, invalid_argument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.emulator._clock import Clock
    from penstock.emulator._http.dispatch import Request, Response
    from penstock.emulator._state.kinesis import Kinesis

_logger = logging.getLogger(__name__)
_JSON = "application/x-amz-json-1.1"
_MAX_BATCH_BYTES = 4 * 1024 * 1024
_MAX_STREAMS = 5000
_DEFAULT_FILE_MIB = 5
_DEFAULT_PAGE = 10
_THROTTLED = "ServiceUnavailableException"
_THROTTLED_TEXT = "Slow down."


@dataclass(slots=True)
class DeliveryStream:
    """A delivery stream and the file that it writes."""

    name: str
    arn: str
    created: float
    destinations: list[dict[str, Any]]
    folder: Path
    max_file_bytes: int
    calls: TokenBucket
    records: TokenBucket
    volume: TokenBucket
    file: Path | None = None
    file_bytes: int = 0

    def write(self, data: list[bytes], now: float) -> None:
        """Write all records to the current file; after an error, it has none of them.

        Raises:
            OSError: they could not be written.
        """
        if self.file is None or self.file_bytes >= self.max_file_bytes:
            stamp = re.sub(r"\D", "-", f"{now:.3f}")
            self.file = self.folder / f"{self.name}-1-{stamp}-{uuid.uuid4()}"
            self.file_bytes = 0
        whole = b"".join(data)
        with self.file.open("ab", buffering=0) as file:
            try:
                view = memoryview(whole)
                while view:
                    view = view[file.write(view) :]
            except OSError:
                file.truncate(self.file_bytes)
                raise
        self.file_bytes += len(whole)


class Firehose:
    """The delivery streams of an account."""

    def __init__(self, kinesis: Kinesis, clock: Clock, folder: Path) -> None:
        self.folder = folder
        """A folder for each delivery stream is in here."""
        self.streams: dict[str, DeliveryStream] = {}
        self._kinesis = kinesis
        self._clock = clock
        self._operations: dict[str, Callable[[dict[str, Any], float], dict[str, Any]]] = {
            "CreateDeliveryStream": self._create,
            "DeleteDeliveryStream": self._delete,
            "DescribeDeliveryStream": self._describe,
            "ListDeliveryStreams": self._list,
            "PutRecord": self._put_record,
            "PutRecordBatch": self._put_record_batch,
        }

    def handle(self, operation: str, request: Request) -> Response:
        """Answer a request; never raises for what a client can send."""
        try:
            handler = self._operations.get(operation)
            if handler is None:
                raise KinesisError("UnknownOperationException", f"Firehose's {operation} is not emulated.")
            try:
                params = msgspec.json.decode(request.body) if request.body else {}
            except msgspec.DecodeError as error:
                raise KinesisError("SerializationException", "the body is not JSON") from error
            checked = validate_request(operation, params, service="firehose")
            self._fail(operation, checked)
            status, answer = 200, handler(checked, self._clock.time())
        except KinesisError as error:
            if error.code == "UnknownOperationException":
                _logger.warning("refused: %s", error)
            status, answer = error.status, {"__type": error.code, "message": error.message}
        except Exception:
            # A bug of the emulator, or a full disk, must look like a fault of the service, not of the connection.
            _logger.exception("internal failure")
            status, answer = 500, {"__type": "InternalFailure", "message": "internal failure"}
        return whole_response(self._clock, status, _JSON, msgspec.json.encode(answer))

    def _fail(self, operation: str, params: dict[str, Any]) -> None:
        if not self._kinesis.faults:
            return
        for fault in self._kinesis.faults.on_call(Target(operation, stream=params.get("DeliveryStreamName"))):
            if fault.kind == "throttle":
                raise KinesisError(_THROTTLED, _THROTTLED_TEXT, status=503)
            if fault.kind == "error":
                raise fault.error(operation)

    def _find(self, params: dict[str, Any]) -> DeliveryStream:
        name = params["DeliveryStreamName"]
        stream = self.streams.get(name)
        if stream is None:
            raise KinesisError(
                "ResourceNotFoundException",
                f"Firehose {name} under account {self._kinesis.config.account_id} not found.",
            )
        return stream

    def _create(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        name, config = params["DeliveryStreamName"], self._kinesis.config
        if name in (".", ".."):
            # Firehose takes them; here they would be other folders than one of its own.
            raise invalid_argument(f"A delivery stream {name} is not emulated.")
        if name in self.streams:
            raise KinesisError(
                "ResourceInUseException",
                f"Firehose {name} under accountId {config.account_id} already exists",
            )
        if params.get("DeliveryStreamType", "DirectPut") != "DirectPut":
            raise invalid_argument("Only delivery streams of the type DirectPut are emulated.")
        if len(self.streams) >= _MAX_STREAMS:
            raise KinesisError("LimitExceededException", f"The account has {_MAX_STREAMS} delivery streams.")
        destination: dict[str, dict[str, Any]] = {
            key.removesuffix("Configuration") + "Description": value
            for key, value in params.items()
            if "Destination" in key and key.endswith("Configuration")
        }
        if len(destination) > 1:
            raise invalid_argument("Exactly one destination configuration is supported for a Firehose.")
        hints = [value["BufferingHints"] for value in destination.values() if "BufferingHints" in value]
        file_mib = hints[0].get("SizeInMBs", _DEFAULT_FILE_MIB) if hints else _DEFAULT_FILE_MIB
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        self.streams[name] = DeliveryStream(
            name=name,
            arn=f"arn:aws:firehose:{self._kinesis.region}:{config.account_id}:deliverystream/{name}",
            created=now,
            destinations=[{"DestinationId": "destinationId-000000000001", **destination}],
            folder=folder,
            max_file_bytes=file_mib * 1024 * 1024,
            records=TokenBucket(config.firehose_records_per_second, now=now),
            volume=TokenBucket(config.firehose_bytes_per_second, now=now),
            calls=TokenBucket(config.firehose_calls_per_second, now=now),
        )
        return {"DeliveryStreamARN": self.streams[name].arn}

    def _delete(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        del self.streams[self._find(params).name]
        return {}

    def _describe(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self._find(params)
        return {
            "DeliveryStreamDescription": {
                "DeliveryStreamName": stream.name,
                "DeliveryStreamARN": stream.arn,
                "DeliveryStreamStatus": "ACTIVE",
                "DeliveryStreamType": "DirectPut",
                "VersionId": "1",
                "CreateTimestamp": stream.created,
                "Destinations": stream.destinations,
                "HasMoreDestinations": False,
            }
        }

    def _list(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        after = params.get("ExclusiveStartDeliveryStreamName", "")
        names = sorted(name for name in self.streams if name > after)
        limit = params.get("Limit", _DEFAULT_PAGE)
        return {"DeliveryStreamNames": names[:limit], "HasMoreDeliveryStreams": len(names) > limit}

    def _put_record(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self._find(params)
        data = params["Record"]["Data"]
        if not self._admit_call(stream, now) or not self._admit_record(stream, len(data), now):
            raise KinesisError(_THROTTLED, _THROTTLED_TEXT, status=503)
        stream.write([data], now)
        return {"RecordId": self._record_id(), "Encrypted": False}

    def _put_record_batch(self, params: dict[str, Any], now: float) -> dict[str, Any]:
        stream = self._find(params)
        records = [entry["Data"] for entry in params["Records"]]
        if sum(map(len, records)) > _MAX_BATCH_BYTES:
            raise invalid_argument("Records size exceeds 4 MB limit")
        if not self._admit_call(stream, now):
            raise KinesisError(_THROTTLED, _THROTTLED_TEXT, status=503)
        admitted = [self._admit_record(stream, len(data), now) for data in records]
        stream.write([data for data, ok in zip(records, admitted, strict=True) if ok], now)
        results = [
            {"RecordId": self._record_id()} if ok else {"ErrorCode": _THROTTLED, "ErrorMessage": _THROTTLED_TEXT}
            for ok in admitted
        ]
        return {"FailedPutCount": admitted.count(False), "Encrypted": False, "RequestResponses": results}

    def _record_id(self) -> str:
        return f"{self._kinesis.random.getrandbits(1024):0256x}"

    def _admit_call(self, stream: DeliveryStream, now: float) -> bool:
        if not self._kinesis.config.enforce_limits:
            return True
        if not stream.calls.has(1, now):
            return False
        stream.calls.take(1)
        return True

    def _admit_record(self, stream: DeliveryStream, size_bytes: int, now: float) -> bool:
        if not self._kinesis.config.enforce_limits:
            return True
        if not (stream.records.has(1, now) and stream.volume.has(size_bytes, now)):
            return False
        stream.records.take(1)
        stream.volume.take(size_bytes)
        return True
