"""Values of records with headers of the AWS Glue Schema Registry, without Spark."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.aws import AwsOptions
from penstock.efo_consumer._glue.avro import avro_reader, json_value
from penstock.efo_consumer._glue.header import decode_glue_record, split_message_index
from penstock.efo_consumer._glue.registry import GlueSchemas, SchemaVersion
from penstock.efo_consumer.errors import SchemaDecodeError


class GlueValue(NamedTuple):
    """What a record says, and by which schema it was written."""

    value: Any
    """Of Avro what fastavro makes of it, of JSON what `json` does, of Protobuf a dict, as its JSON has it."""
    schema: SchemaVersion


class GlueDecoder:
    """Decodes records that were written with schemas of the registry: Avro, JSON and Protobuf, also compressed.

    Avro takes the extra `avro` of this package, Protobuf the extra `protobuf`. Needs the permission
    `glue:GetSchemaVersion`; each version is asked for once in a process.

    Args:
        aws: region and credentials; taken from the environment by default. Its endpoint is not used.
        endpoint_url: of Glue. Default: `AWS_ENDPOINT_URL_GLUE`, or else the region's.

    Raises:
        AwsOptionError: `aws` is not an `AwsOptions`.
    """

    def __init__(self, aws: AwsOptions | None = None, *, endpoint_url: str | None = None) -> None:
        self._schemas = GlueSchemas(aws, endpoint_url)

    def decode(self, record: bytes) -> GlueValue:
        """The value of a record's data. Waits for the registry where the schema's version is new to this process.

        Raises:
            SchemaDecodeError: the record has no header, does not fit its schema, or the library of its format is
                not installed.
            SchemaRegistryError: the registry has no such version, or cannot be asked.
        """
        schema_version_id, payload = decode_glue_record(record)
        version = self._schemas.version_of_id(schema_version_id)
        return GlueValue(_reader(version)(payload), version)

    async def decode_all(self, records: Iterable[bytes]) -> list[GlueValue]:
        """Decode many records, such as `batch.records["data"].to_pylist()`, in a thread. The values are in their order.

        Raises:
            SchemaDecodeError: as in `decode`; `number` is the place of the record.
            SchemaRegistryError: as in `decode`.
        """

        def decode() -> list[GlueValue]:
            found: list[GlueValue] = []
            for record in records:
                try:
                    found.append(self.decode(record))
                except SchemaDecodeError as error:
                    raise SchemaDecodeError(error.reason, number=len(found)) from error
            return found

        return await asyncio.to_thread(decode)


@lru_cache(maxsize=256)
def _reader(version: SchemaVersion) -> Callable[[bytes], Any]:
    """By what a payload is read; a process remembers the last 256."""
    try:
        if version.data_format == "AVRO":
            return avro_reader(version.definition, str(version))
        if version.data_format == "PROTOBUF":
            return _protobuf(version)
    except ImportError as error:
        extra = version.data_format.lower()
        raise SchemaDecodeError(
            f"it is of {version}, for which no library is installed: pip install 'penstock-efo-consumer[{extra}]'"
        ) from error
    if version.data_format == "JSON":
        return json_value
    raise SchemaDecodeError(f"it is of {version}, whose data format is not known here")


def _protobuf(version: SchemaVersion) -> Callable[[bytes], Any]:
    from google.protobuf import json_format

    file = ProtoFile(version.definition)

    def read(payload: bytes) -> Any:
        message = file.parsed(payload)
        try:
            return json_format.MessageToDict(message, preserving_proto_field_name=True)
        except Exception as error:  # of several kinds: a time out of range, an Any of an unknown type, NaN in a Value
            raise SchemaDecodeError(
                f"it is a {message.DESCRIPTOR.full_name} that JSON cannot hold ({error})"
            ) from error

    return read


class ProtoFile:
    """A compiled `.proto` file; its messages have numbers, by which a record says which one it is.

    Raises:
        ImportError: protobuf or grpcio-tools is not installed.
        SchemaDecodeError: protoc refuses the definition.
    """

    def __init__(self, definition: str) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(definition)).file
        pool = descriptor_pool.DescriptorPool()
        for file in files:
            pool.Add(file)
        root = pool.FindFileByName(files[-1].name)
        self._type_names = {
            number: name.removeprefix("TYPE_").lower()
            for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()
        }
        self._class_of: Callable[[Any], Any] = message_factory.GetMessageClass
        waiting, found = list(root.message_types_by_name.values()), []
        self.top_level = sorted(one.full_name for one in waiting)
        while waiting:
            one = waiting.pop()
            found.append(one)
            waiting += one.nested_types
        # The entries of maps have numbers too: they are messages within the one that has the map.
        self.messages = sorted(found, key=lambda one: str(one.full_name))

    def new(self, message: Any) -> Any:
        """An empty message."""
        return self._class_of(message)()

    def index_of(self, message: Any) -> int:
        """The number of a message."""
        return [str(one.full_name) for one in self.messages].index(str(message.full_name))

    def type_name(self, field: Any) -> str:
        """The type of a field, as it is written in the file; `message` and `enum` for those."""
        return self._type_names[field.type]

    def parsed(self, payload: bytes) -> Any:
        """The message of a record's payload, which begins with its number.

        Raises:
            SchemaDecodeError: no message of this file has the number.
        """
        index, content = split_message_index(payload)
        if index >= len(self.messages):
            raise SchemaDecodeError(f"it is message {index} of a schema that has {len(self.messages)}")
        found = self.new(self.messages[index])
        try:
            found.ParseFromString(content)
        except Exception as error:  # DecodeError, of whichever implementation
            raise SchemaDecodeError(f"it is not a {self.messages[index].full_name} ({error})") from error
        return found


def _compiled(definition: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="penstock-proto-") as folder:
        Path(folder, "schema.proto").write_text(definition)
        # In a process of its own, as what protoc says of a mistake goes to standard error.
        arguments = ["-I.", "--include_imports", "--descriptor_set_out=out", "schema.proto"]
        ended = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=False,
        )
        if "No module named" in ended.stderr:
            raise ImportError("No module named 'grpc_tools'", name="grpc_tools")
        if ended.returncode != 0:
            said = " ".join(ended.stderr.split()).replace("schema.proto:", "line ")
            raise SchemaDecodeError(f"protoc does not take the registry's Protobuf schema: {said}")
        return Path(folder, "out").read_bytes()
