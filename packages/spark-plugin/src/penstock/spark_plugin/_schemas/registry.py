"""The AWS Glue Schema Registry: schema versions by name and by definition, and new ones."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from penstock.aws import AwsOptionError, AwsOptions, AwsServiceError
from penstock.efo_consumer import GlueSchemas, SchemaVersion, get_version
from penstock.efo_consumer.errors import SchemaRegistryError
from penstock.spark_plugin._connections import aws_options, shared_session
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin.errors import OptionError, SparkPluginError

DEFAULT_REGISTRY = "default-registry"
"""That of every account."""

_CHECK_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.5, 3, 3, 3, 3, 3, 3, 3)
_NOT_FOUND = "EntityNotFoundException"
Call = Callable[..., Awaitable[dict[str, Any]]]


class GlueSchemaRegistry(GlueSchemas):
    """The registry for readers that name a schema, and for writers; all tasks of a process share their sessions."""

    def __init__(self, aws: AwsOptions, endpoint_url: str | None = None) -> None:
        super().__init__(aws, endpoint_url, session=lambda: shared_session(aws))

    def version_of_name(self, registry: str, schema: str, number: int | None = None) -> SchemaVersion:
        """A version by its schema's name; the latest by default. Not cached: the latest changes.

        Raises:
            SchemaRegistryError: the version does not exist or is not available, or the registry cannot be asked.
        """
        which = {"LatestVersion": True} if number is None else {"VersionNumber": number}
        name = {"RegistryName": registry, "SchemaName": schema}
        try:
            return self.run(lambda call: get_version(call, SchemaId=name, SchemaVersionNumber=which))
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
        """The version with this definition; it is registered if it does not exist, with its schema if that is missing.

        `compatibility` is for a new schema.

        Raises:
            SparkPluginError: the definition is not compatible with the versions before it.
            SchemaRegistryError: the registry refuses the definition, or cannot be asked.
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

        return self.version_of_id(self.run(register))


def open_registry(options: KinesisOptions) -> GlueSchemaRegistry:
    """The registry of a data source's region and credentials, at its `glueEndpointUrl`.

    Raises:
        OptionError: the value is not a URL, or holds what may be a secret.
    """
    if options.glue_endpoint_url is not None:
        try:
            AwsOptions(endpoint_url=options.glue_endpoint_url)
        except AwsOptionError as error:
            raise OptionError.unusable("glueEndpointUrl", error.reason) from error
    return GlueSchemaRegistry(aws_options(options), options.glue_endpoint_url)


_COMPATIBILITIES = {
    "BACKWARD": "readers of the new version must be able to read the data of the old one, so columns may go, and new "
    "ones must be nullable",
    "FORWARD": "readers of the old version must be able to read the data of the new one, so columns may be added, and "
    "only nullable ones may go",
    "FULL": "readers of each version must be able to read the data of the other, so only nullable columns may be added "
    "or go",
}


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
        compatibility = found["Compatibility"]
        rule = next(
            (rule for name, rule in _COMPATIBILITIES.items() if compatibility.startswith(name)),
            "the registry lets no version follow another",
        )
        rule += ", and not only of the last one" if compatibility.endswith("_ALL") else ""
        raise SparkPluginError.of(
            "INCOMPATIBLE_SCHEMA", registry=registry, schema=schema, compatibility=compatibility, rule=rule
        )
    raise SchemaRegistryError(f"the new version of schema {schema!r} is still {status}: start the write again")
