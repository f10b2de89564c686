"""The AWS Glue Schema Registry: schema versions by the ids in records' headers."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from penstock.aws import AwsClient, AwsError, AwsOptions, AwsServiceError, AwsSession, BackoffPolicy, retry
from penstock.efo_consumer.errors import SchemaRegistryError
from penstock.rpc import LoopThread

MAX_CACHED_VERSIONS = 1000
"""Schema versions that a process remembers; the one that was used longest ago goes first."""

_MISSING_SECONDS = 60.0
_POLICY = BackoffPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=5), exponent=2, max_attempts=8)
_NOT_FOUND = "EntityNotFoundException"
_T = TypeVar("_T")
Call = Callable[..., Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a schema, which never changes."""

    id: UUID
    data_format: str
    """`AVRO`, `JSON` or `PROTOBUF`."""
    definition: str
    """An Avro schema, a JSON Schema, or the text of a `.proto` file."""
    registry: str
    schema: str
    """Its schema's name."""
    number: int
    """Counted from 1."""

    def __str__(self) -> str:
        return f"version {self.number} of schema {self.schema!r} ({self.data_format})"


class GlueSchemas:
    """Asks the registry, and waits for the answer; from any thread. Throttles and failures of the network are retried.

    Versions by id never change: a process keeps up to `MAX_CACHED_VERSIONS` of them for all instances.

    Args:
        aws: region and credentials; its endpoint is Kinesis's, and not used.
        endpoint_url: of Glue. Default: `AWS_ENDPOINT_URL_GLUE`, or else the region's.
        session: gives the session for a call; default: a new one.

    Raises:
        AwsOptionError: `aws` is not an `AwsOptions`.
    """

    def __init__(
        self,
        aws: AwsOptions | None,
        endpoint_url: str | None = None,
        *,
        session: Callable[[], AwsSession] | None = None,
    ) -> None:
        self.aws = AwsOptions.of(aws)
        self.endpoint_url = endpoint_url
        self._session = session or (lambda: AwsSession(self.aws))

    def version_of_id(self, schema_version_id: UUID) -> SchemaVersion:
        """A version, by the id in a record's header.

        Raises:
            SchemaRegistryError: the version does not exist (remembered for a minute), or the registry cannot be asked.
        """
        key = (self.aws, self.endpoint_url, schema_version_id)
        found = _cache.get(key)
        if found is None:
            try:
                found = self.run(lambda call: get_version(call, SchemaVersionId=str(schema_version_id)))
            except SchemaRegistryError as error:
                if not error.is_missing:
                    raise
                found = SchemaRegistryError(
                    f"there is no schema version {schema_version_id}: the record was written with another registry "
                    "(region, account), or its schema was deleted",
                    code=_NOT_FOUND,
                )
            _cache.put(key, found)
        if isinstance(found, SchemaRegistryError):
            raise found.with_traceback(None)
        return found

    def run(self, work: Callable[[Call], Awaitable[_T]]) -> _T:
        """Run a coroutine that calls Glue by its operations' names, and wait for it.

        Raises:
            SchemaRegistryError: Glue refuses a call, or cannot be asked.
        """

        async def run() -> _T:
            async with self._session().aio_client("glue", endpoint_url=self.endpoint_url) as client:
                try:
                    return await work(_retrying(client))
                except AwsServiceError as error:
                    raise SchemaRegistryError(
                        f"the Glue Schema Registry answers {error.code}: {error.message}", code=error.code
                    ) from error
                except AwsError as error:
                    raise SchemaRegistryError(
                        f"the Glue Schema Registry cannot be asked ({error}): check glueEndpointUrl or "
                        "AWS_ENDPOINT_URL_GLUE, the region, the credentials and the network"
                    ) from error

        with LoopThread("glue-schema-registry") as loop:
            return loop.call(run())


def _retrying(client: AwsClient) -> Call:
    async def call(operation: str, **parameters: Any) -> dict[str, Any]:
        return await retry(lambda: client.call(operation, **parameters), _POLICY)

    return call


async def get_version(call: Call, **which: Any) -> SchemaVersion:
    """A version, by the parameters of GetSchemaVersion.

    Raises:
        SchemaRegistryError: the version is not available.
    """
    found = await call("get_schema_version", **which)
    _, registry, schema = found["SchemaArn"].rsplit("/", 2)
    version = SchemaVersion(
        UUID(found["SchemaVersionId"]),
        found["DataFormat"],
        found["SchemaDefinition"],
        registry,
        schema,
        int(found["VersionNumber"]),
    )
    if found["Status"] != "AVAILABLE":
        raise SchemaRegistryError(f"{version} is {found['Status']}, and not AVAILABLE: name another version")
    return version


class _Versions:
    """Versions by id, and the ids that there are none of, by process."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, tuple[SchemaVersion | SchemaRegistryError, float]] = OrderedDict()
        self._lock = threading.Lock()
        # A child that is forked while another thread holds the lock would wait for it without end.
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def get(self, key: Any) -> SchemaVersion | SchemaRegistryError | None:
        with self._lock:
            found, since = self._found.get(key, (None, 0.0))
            if isinstance(found, SchemaRegistryError) and time.monotonic() - since > _MISSING_SECONDS:
                return None
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: Any, found: SchemaVersion | SchemaRegistryError) -> None:
        with self._lock:
            self._found[key] = found, time.monotonic()
            self._found.move_to_end(key)
            while len(self._found) > MAX_CACHED_VERSIONS:
                self._found.popitem(last=False)


_cache = _Versions()
