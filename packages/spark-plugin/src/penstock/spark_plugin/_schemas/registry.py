"""The AWS Glue Schema Registry: schema versions by id, by name and by definition, and new ones."""

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from penstock.aws import AwsClient, AwsError, AwsOptionError, AwsOptions, AwsServiceError, BackoffPolicy, retry
from penstock.rpc import LoopThread
from penstock.spark_plugin._connections import aws_options, shared_session
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin.errors import OptionError, SchemaCompatibilityError, SchemaRegistryError

DEFAULT_REGISTRY = "default-registry"
"""That of every account."""
MAX_CACHED_VERSIONS = 1000
"""Schema versions that a process remembers; the one that was used longest ago goes first."""

_MISSING_SECONDS = 60.0
_POLICY = BackoffPolicy(base=timedelta(milliseconds=200), maximum=timedelta(seconds=5), exponent=2, max_attempts=8)
_CHECK_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.5, 3, 3, 3, 3, 3, 3, 3)
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


class GlueSchemaRegistry:
    """Asks the registry, and waits for the answer; from any thread. Throttles and failures of the network are retried.

    Versions by id never change: a process keeps up to `MAX_CACHED_VERSIONS` of them for all instances.

    Args:
        aws: region and credentials; its endpoint is Kinesis's, and not used.
        endpoint_url: of Glue. Default: `AWS_ENDPOINT_URL_GLUE`, or else the region's.
    """

    def __init__(self, aws: AwsOptions, endpoint_url: str | None = None) -> None:
        self.aws = aws
        self.endpoint_url = endpoint_url

    def version_of_id(self, schema_version_id: UUID) -> SchemaVersion:
        """A version, by the id in a record's header.

        Raises:
            SchemaRegistryError: There is none, which is remembered for a minute; or the registry cannot be asked.
        """
        key = (self.aws, self.endpoint_url, schema_version_id)
        found = _cache.get(key)
        if found is None:
            try:
                found = self._run(lambda call: _get(call, SchemaVersionId=str(schema_version_id)))
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

    def version_of_name(self, registry: str, schema: str, number: int | None = None) -> SchemaVersion:
        """A version by its schema's name; the latest by default. Not cached: the latest changes.

        Raises:
            SchemaRegistryError: There is none, or it is not available, or the registry cannot be asked.
        """
        which = {"LatestVersion": True} if number is None else {"VersionNumber": number}
        name = {"RegistryName": registry, "SchemaName": schema}
        try:
            return self._run(lambda call: _get(call, SchemaId=name, SchemaVersionNumber=which))
        except SchemaRegistryError as error:
            if not error.is_missing:
                raise
            what = f"schema {schema!r}" if number is None else f"version {number} of schema {schema!r}"
            raise SchemaRegistryError(
                f"there is no {what} in registry {registry!r} of this region and account: correct the name, register "
                "it, or set 'schemaAutoRegister' to true for a writer",
                code=_NOT_FOUND,
            ) from error

    def registered(
        self, registry: str, schema: str, data_format: str, definition: str, compatibility: str
    ) -> SchemaVersion:
        """The version with this definition; registered when there is none, with its schema where that is missing.

        `compatibility` is that of a new schema.

        Raises:
            SchemaCompatibilityError: The definition is not compatible with the versions before it.
            SchemaRegistryError: The registry refuses it, or cannot be asked.
        """
        name = {"RegistryName": registry, "SchemaName": schema}

        async def register(call: Call) -> UUID:
            try:
                found = await call("get_schema_by_definition", SchemaId=name, SchemaDefinition=definition)
            except AwsServiceError as error:
                if error.code != _NOT_FOUND:
                    raise
            else:
                return UUID(found["SchemaVersionId"])
            try:
                new = await call("register_schema_version", SchemaId=name, SchemaDefinition=definition)
            except AwsServiceError as error:
                if error.code != _NOT_FOUND:
                    raise
                try:
                    made = await call(
                        "create_schema",
                        RegistryId={"RegistryName": registry},
                        SchemaName=schema,
                        DataFormat=data_format,
                        Compatibility=compatibility,
                        SchemaDefinition=definition,
                    )
                except AwsServiceError as conflict:
                    # Another writer was first.
                    if conflict.code != "AlreadyExistsException":
                        raise
                    new = await call("register_schema_version", SchemaId=name, SchemaDefinition=definition)
                else:
                    new = {"SchemaVersionId": made["SchemaVersionId"], "Status": made["SchemaVersionStatus"]}
            await _until_checked(call, new, registry, schema)
            return UUID(new["SchemaVersionId"])

        return self.version_of_id(self._run(register))

    def _run(self, work: Callable[[Call], Awaitable[_T]]) -> _T:
        async def run() -> _T:
            async with shared_session(self.aws).aio_client("glue", endpoint_url=self.endpoint_url) as client:
                try:
                    return await work(_retrying(client))
                except AwsServiceError as error:
                    raise SchemaRegistryError(
                        f"the Glue Schema Registry answers {error.code}: {error.message}", code=error.code
                    ) from error
                except AwsError as error:
                    raise SchemaRegistryError(
                        f"the Glue Schema Registry cannot be asked ({error}): check glueEndpointUrl, the region, the "
                        "credentials and the network"
                    ) from error

        with LoopThread("glue-schema-registry") as loop:
            return loop.call(run())


def open_registry(options: KinesisOptions) -> GlueSchemaRegistry:
    """The registry of a data source's region and credentials, at its `glueEndpointUrl`.

    Raises:
        OptionError: The URL is none, or holds what may be a secret.
    """
    if options.glue_endpoint_url is not None:
        try:
            AwsOptions(endpoint_url=options.glue_endpoint_url)
        except AwsOptionError as error:
            raise OptionError(f"option 'glueEndpointUrl': {error.reason}", option="glueEndpointUrl") from error
    return GlueSchemaRegistry(aws_options(options), options.glue_endpoint_url)


def _retrying(client: AwsClient) -> Call:
    async def call(operation: str, **parameters: Any) -> dict[str, Any]:
        return await retry(lambda: client.call(operation, **parameters), _POLICY)

    return call


async def _get(call: Call, **which: Any) -> SchemaVersion:
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


async def _until_checked(call: Call, new: dict[str, Any], registry: str, schema: str) -> None:
    """Wait for the registry's check of a new version."""
    status = new["Status"]
    for pause in _CHECK_SECONDS:
        if status != "PENDING":
            break
        await asyncio.sleep(pause)
        status = (await call("get_schema_version", SchemaVersionId=new["SchemaVersionId"]))["Status"]
    if status == "AVAILABLE":
        return
    if status == "FAILURE":
        found = await call("get_schema", SchemaId={"RegistryName": registry, "SchemaName": schema})
        raise SchemaCompatibilityError(registry, schema, found["Compatibility"])
    raise SchemaRegistryError(f"the new version of schema {schema!r} is still {status}: start the write again")


class _Versions:
    """Versions by id, and the ids that there are none of, by process."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, tuple[SchemaVersion | SchemaRegistryError, float]] = OrderedDict()
        self._lock = threading.Lock()
        # A child that is forked while another thread holds the lock would wait for it for ever.
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
