"""Protobuf schemas of the registry: text of `.proto` files, compiled by protoc as grpcio-tools has it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.efo_consumer._glue.header import split_message_index
from penstock.efo_consumer.errors import SchemaDecodeError


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
            SchemaDecodeError: the number is not that of a message in this file.
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
