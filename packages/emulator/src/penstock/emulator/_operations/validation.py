"""Checks of a request against botocore's service models.

The model gives types, required members, lengths, ranges, patterns and enumerations; the words of the answers are those
of the service. Each shape is compiled once into a function that checks and converts: blobs become bytes, timestamps
float seconds.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import botocore.loaders
import pybase64
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, StringShape, StructureShape

from penstock.emulator.errors import KinesisError

if TYPE_CHECKING:
    from collections.abc import Callable

    from botocore.model import Shape

    Check: TypeAlias = Callable[[Any, str, list[str]], Any]

_SHOWN_CHARACTERS = 200


@cache
def service_model(service: str = "kinesis") -> ServiceModel:
    """The model of a service that the installed botocore carries."""
    loader = botocore.loaders.Loader()
    return ServiceModel(loader.load_service_model(service, "service-2"), service_name=service)


def validate_request(operation: str, params: Any, *, service: str = "kinesis") -> dict[str, Any]:
    """Check the parameters of a request and convert them to Python values; unknown members are dropped.

    Raises:
        KinesisError: ValidationException, which names every constraint that failed, or SerializationException for a
            wrong type.
    """
    failures: list[str] = []
    converted: dict[str, Any] = _operation_check(service, operation)(params, "", failures)
    if failures:
        count = f"{len(failures)} validation error{'s' if len(failures) > 1 else ''} detected: "
        raise KinesisError("ValidationException", count + "; ".join(failures))
    return converted


@cache
def _operation_check(service: str, operation: str) -> Check:
    model: OperationModel = service_model(service).operation_model(operation)
    shape = model.input_shape
    if shape is None:
        return lambda _value, _path, _failures: {}
    return _compile(shape)


def _compile(shape: Shape) -> Check:
    if isinstance(shape, StructureShape):
        return _structure(shape)
    if isinstance(shape, ListShape):
        return _list(shape)
    if isinstance(shape, MapShape):
        return _map(shape)
    if isinstance(shape, StringShape):
        return _string(shape)
    match shape.type_name:
        case "blob":
            return _blob(shape)
        case "integer" | "long":
            return _number(shape, (int,))
        case "double" | "float":
            return _number(shape, (int, float))
        case "timestamp":
            return _timestamp
        case "boolean":
            return _boolean
    raise AssertionError(f"the model has a {shape.type_name} that no check was written for")


def _structure(shape: StructureShape) -> Check:
    members = [
        (name, name[0].lower() + name[1:], _compile(member), name in shape.required_members)
        for name, member in shape.members.items()
    ]

    def check(value: Any, path: str, failures: list[str]) -> dict[str, Any]:
        if type(value) is not dict:
            raise _serialization(value, "a structure")
        prefix = f"{path}." if path else ""
        converted: dict[str, Any] = {}
        for name, label, member_check, required in members:
            member = value.get(name)
            if member is not None:
                converted[name] = member_check(member, prefix + label, failures)
            elif required:
                failures.append(_failure("null", prefix + label, "Member must not be null"))
        return converted

    return check


def _list(shape: ListShape) -> Check:
    item_check = _compile(shape.member)
    length = _length(shape)

    def check(value: Any, path: str, failures: list[str]) -> list[Any]:
        if type(value) is not list:
            raise _serialization(value, "a list")
        length(len(value), value, path, failures)
        return [item_check(item, f"{path}.{index}.member", failures) for index, item in enumerate(value, 1)]

    return check


def _map(shape: MapShape) -> Check:
    value_check = _compile(shape.value)
    length = _length(shape)

    def check(value: Any, path: str, failures: list[str]) -> dict[str, Any]:
        if type(value) is not dict:
            raise _serialization(value, "a map")
        length(len(value), value, path, failures)
        return {key: value_check(item, f"{path}.{key}.member", failures) for key, item in value.items()}

    return check


def _string(shape: StringShape) -> Check:
    length = _length(shape)
    source = shape.metadata.get("pattern")
    pattern = _pattern(source) if source else None
    enum = list(shape.enum)

    def check(value: Any, path: str, failures: list[str]) -> str:
        if type(value) is not str:
            raise _serialization(value, "a string")
        length(len(value), value, path, failures)
        if pattern is not None and not pattern.fullmatch(value):
            constraint = f"Member must satisfy regular expression pattern: {source}"
            failures.append(_failure(f"'{value}'", path, constraint))
        if enum and value not in enum:
            constraint = f"Member must satisfy enum value set: [{', '.join(enum)}]"
            failures.append(_failure(f"'{value}'", path, constraint))
        return value

    return check


def _pattern(source: str) -> re.Pattern[str]:
    if r"\p" not in source:
        # In Java, \d and \w match ASCII characters only.
        return re.compile(source, re.ASCII)
    # Java's classes of letters, digits and blanks, which tags may have; `re` has no others than these, a little wider.
    for java, ours in ((r"\p{L}", r"\w"), (r"\p{N}", r"\d"), (r"\p{Z}", r"\s")):
        source = source.replace(java, ours)
    return re.compile(source)


def _blob(shape: Shape) -> Check:
    length = _length(shape)

    def check(value: Any, path: str, failures: list[str]) -> bytes:
        # CBOR has byte strings; what JSON has is base64.
        if type(value) is bytes:
            data = value
        elif type(value) is str:
            try:
                data = pybase64.b64decode(value, validate=True)
            except ValueError as error:
                raise _serialization(value, "a blob") from error
        else:
            raise _serialization(value, "a blob")
        length(len(data), "a blob", path, failures)
        return data

    return check


def _number(shape: Shape, kinds: tuple[type, ...]) -> Check:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")

    def check(value: Any, path: str, failures: list[str]) -> Any:
        if type(value) not in kinds:
            raise _serialization(value, "a number")
        if low is not None and value < low:
            failures.append(_failure(f"'{value}'", path, f"Member must have value greater than or equal to {low}"))
        if high is not None and value > high:
            failures.append(_failure(f"'{value}'", path, f"Member must have value less than or equal to {high}"))
        return value

    return check


def _timestamp(value: Any, path: str, failures: list[str]) -> float:
    if type(value) not in (int, float):
        raise _serialization(value, "a timestamp")
    return float(value)


def _boolean(value: Any, path: str, failures: list[str]) -> bool:
    if type(value) is not bool:
        raise _serialization(value, "a boolean")
    return value


def _length(shape: Shape) -> Callable[[int, Any, str, list[str]], None]:
    low, high = shape.metadata.get("min") or 0, shape.metadata.get("max")

    def check(length: int, value: Any, path: str, failures: list[str]) -> None:
        if length < low:
            failures.append(_failure(f"'{value}'", path, f"Member must have length greater than or equal to {low}"))
        if high is not None and length > high:
            failures.append(_failure(f"'{value}'", path, f"Member must have length less than or equal to {high}"))

    return check


def _failure(value: str, path: str, constraint: str) -> str:
    if len(value) > _SHOWN_CHARACTERS:
        value = value[:_SHOWN_CHARACTERS] + "..."
    return f"Value {value} at '{path}' failed to satisfy constraint: {constraint}"


def _serialization(value: Any, wanted: str) -> KinesisError:
    return KinesisError("SerializationException", f"{type(value).__name__} can not be converted to {wanted}")
