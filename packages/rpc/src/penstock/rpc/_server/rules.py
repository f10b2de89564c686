"""The rules of a contract, compiled once per message: how much a request holds, and what it names.

Messages are walked by columns: a field of all items of a list at once, and only the fields that have rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor_pool import Default

from penstock.proto.rules.v1 import rules_pb2
from penstock.rpc._security.principals import RESOURCES

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

    from penstock.rpc._security.principals import Principal

KINDS: Final = {rules_pb2.Resource.Value(f"RESOURCE_{kind[:-1].upper()}"): kind for kind in RESOURCES} | {
    rules_pb2.RESOURCE_SESSION: "jobs"
}
"""The list of a principal that holds for each kind of resource."""
_STREAM: Final = r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/([A-Za-z0-9_.-]{1,128})"
_TABLE: Final = r"arn:aws[a-z-]*:dynamodb:[a-z0-9-]+:[0-9]{12}:table/[A-Za-z0-9_.-]{3,255}/stream/[0-9T:.-]{1,40}"
_STREAM_ARN: Final = re.compile(_STREAM)
_CONSUMER_ARN: Final = re.compile(_STREAM + r"/consumer/([A-Za-z0-9_.-]{1,128}):[0-9]{1,20}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+"), "letters, digits and _.-"
_PRINTABLE: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*"), "characters that can be printed"
_ALPHABETS: Final = {
    rules_pb2.ALPHABET_NAME: _NAME,
    rules_pb2.ALPHABET_DIGITS: (re.compile("[0-9]+"), "digits"),
    rules_pb2.ALPHABET_PRINTABLE: _PRINTABLE,
}
_SHAPES: Final = {
    rules_pb2.RESOURCE_STREAM: (
        re.compile(f"{_NAME[0].pattern}|{_STREAM}|{_TABLE}"),
        "the name or the ARN of a stream",
    ),
    rules_pb2.RESOURCE_CONSUMER: (
        re.compile(f"{_NAME[0].pattern}|{_CONSUMER_ARN.pattern}"),
        "the name or the ARN of a stream consumer",
    ),
}
_OWNER: Final = re.compile(r"(.*) \(principal ([A-Za-z0-9._-]+)\)", re.DOTALL)
_SLACK_BYTES: Final = 64 * 1024
"""For fields of newer clients, which this release does not know."""
_MOST_SHOWN: Final = 100


class _Field:
    """A field that has rules, or whose messages have fields with rules."""

    def __init__(self, of: FieldDescriptor) -> None:
        self.name = of.name
        self.rules = of.GetOptions().Extensions[rules_pb2.field]
        self.get = attrgetter(of.name)
        self.is_repeated = of.is_repeated
        self.is_text = of.type == of.TYPE_STRING
        part = of.message_type
        self.is_map = part is not None and part.GetOptions().map_entry
        if part is not None and self.is_map:
            part = part.fields_by_name["value"].message_type
        self.part = None if part is None else rules_of(part)
        names = _SHAPES.get(self.rules.resource, _PRINTABLE) if self.rules.resource else None
        self.shape = _ALPHABETS.get(self.rules.alphabet, names)
        self.kind = KINDS.get(self.rules.resource)
        values = () if of.enum_type is None else of.enum_type.values
        self.for_admins = {one.number for one in values if one.GetOptions().Extensions[rules_pb2.needs_admin]}
        self.most_bytes = self._most_bytes(of)

    def _most_bytes(self, of: FieldDescriptor) -> float:
        most: float = self.rules.max_bytes or float("inf")
        if self.part is not None:
            most = self.part.most_bytes + self.rules.max_bytes if self.is_map else min(most, self.part.most_bytes)
        elif of.type not in (of.TYPE_STRING, of.TYPE_BYTES):
            most = 10
        return (most + 16) * (self.rules.max_items or float("inf") if self.is_repeated else 1)

    def lists(self, messages: Iterable[Any]) -> list[Any]:
        """What each message has in a repeated field or a map, without what is empty."""
        return [one for one in map(self.get, messages) if one]

    def parts(self, messages: Iterable[Any]) -> list[Any]:
        """The messages that are in the field."""
        if self.is_repeated:
            return [*chain.from_iterable(one.values() if self.is_map else one for one in self.lists(messages))]
        return [self.get(one) for one in messages if one.HasField(self.name)]

    def values(self, messages: Iterable[Any]) -> list[Any]:
        """The texts, bytes or numbers that are in the field; the keys of a map."""
        return [*chain.from_iterable(self.lists(messages))] if self.is_repeated else [*map(self.get, messages)]

    def broken(self, messages: Sequence[Any], path: str, size: int) -> str | None:
        """Which rule the messages break; None if they break none."""
        rules, path = self.rules, path + self.name
        if self.is_repeated:
            lists = self.lists(messages)
            if not lists:
                return f"{path} is required" if rules.required else None
            if max(map(len, lists)) > rules.max_items > 0:
                return f"{path} has more than {rules.max_items:,} items"
        if self.part is not None:
            parts = self.parts(messages)
            if rules.required and len(parts) < len(messages):
                return f"{path} is required"
            if rules.max_bytes and not self.is_map and any(one.ByteSize() > rules.max_bytes for one in parts):
                return f"{path} has more than {rules.max_bytes:,} bytes"
            reason = self.part.broken(parts, f"{path}.", size) if parts else None
            if reason or not self.is_map:
                return reason
        if rules.maximum:
            wrong = next((one for one in self.values(messages) if not 0 <= one <= rules.maximum), None)
            return None if wrong is None else f"{path} {wrong:g} is not between 0 and {rules.maximum:,.14g}"
        return self._broken_text(messages, path, size)

    def _broken_text(self, messages: Sequence[Any], path: str, size: int) -> str | None:
        rules = self.rules
        # No value is larger than the request.
        is_long = 0 < rules.max_bytes < size
        if not (is_long or rules.required or self.shape):
            return None
        values = self.values(messages)
        if is_long and max(map(len, values)) * (4 if self.is_text else 1) > rules.max_bytes:
            sizes = map(len, (one.encode() for one in values) if self.is_text else values)
            if max(sizes) > rules.max_bytes:
                return f"{path} has more than {rules.max_bytes:,} bytes"
        if rules.required and not all(values):
            return f"{path} is required"
        if self.shape is not None:
            pattern, words = self.shape
            wrong = next((one for one in set(values) if one and not pattern.fullmatch(one)), None)
            if wrong is not None:
                return f"{path} {wrong[:_MOST_SHOWN]!r} is not {words}"
        return None

    def used(self, messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """(Kind, name) of each resource that the messages name in the field."""
        if self.part is not None:
            yield from self.part.used(self.parts(messages))
        if self.kind is None:
            return
        if self.kind == "destinations":
            # Without the last part it names nothing.
            names = dict.fromkeys(f"{one.kind}:{self.get(one)}" for one in messages if self.get(one))
        else:
            names = dict.fromkeys(filter(None, self.values(messages)))
        for name in names:
            if self.kind == "consumers" and (found := _CONSUMER_ARN.fullmatch(name)):
                yield "streams", found[1]
                yield "consumers", found[2]
            else:
                yield self.kind, _shown(self.kind, name)


def _shown(kind: str, name: str) -> str:
    """What globs are compared with: the name in an ARN of Kinesis, and an id without its owner."""
    if kind == "jobs":
        found = _OWNER.fullmatch(name)
    elif kind == "destinations":
        return f"kinesis:{found[1]}" if (found := _STREAM_ARN.fullmatch(name.removeprefix("kinesis:"))) else name
    else:
        found = _STREAM_ARN.fullmatch(name)
    return found[1] if found else name


class MessageRules:
    """The rules of a message and of the messages in it."""

    bounded: list[_Field]
    naming: list[_Field]
    own: list[_Field]

    def __init__(self, of: Descriptor) -> None:
        fields = [_Field(one) for one in of.fields]
        self.name = of.name
        self.most_bytes = sum(one.most_bytes for one in fields)
        """More cannot be in it, whatever its fields hold."""
        self.bounded = [one for one in fields if one.rules.ByteSize() or (one.part and one.part.bounded)]
        self.naming = [one for one in fields if one.kind or (one.part and one.part.naming)]
        self.own = [one for one in fields if one.rules.is_own_id or (one.part and one.part.own)]
        self.for_admins = [one for one in fields if one.for_admins]
        self.dry_run = next((one.get for one in fields if one.rules.is_dry_run), None)

    def too_long(self, content: bytes) -> str | None:
        """Why a request is refused before it is parsed, which takes many times its bytes; None if it is parsed."""
        most = self.most_bytes + _SLACK_BYTES
        is_long = len(content) > most
        return f"{self.name} has more than {int(most):,} bytes: the contract bounds each field" if is_long else None

    def refusal(self, request: Any) -> str | None:
        """Which rule a request breaks, with the path of the field; None if it breaks none."""
        return self.broken([request], "", request.ByteSize())

    def broken(self, messages: Sequence[Any], path: str, size: int) -> str | None:
        """Which rule the messages break; None if they break none.

        Args:
            messages: of this kind.
            path: of the field that holds them, with a dot at its end.
            size: bytes of the request.
        """
        reasons = (one.broken(messages, path, size) for one in self.bounded)
        return next(filter(None, reasons), None)

    def used(self, messages: Sequence[Any]) -> Iterator[tuple[str, str]]:
        """(Kind, name) of each resource that the messages name."""
        for one in self.naming:
            yield from one.used(messages)

    def own_ids(self, messages: Sequence[Any]) -> Iterator[tuple[Any, str]]:
        """(Message, field) of each id that belongs to the caller."""
        for field in self.own:
            if field.part is not None:
                yield from field.part.own_ids(field.parts(messages))
            else:
                yield from ((one, field.name) for one in messages)


@cache
def rules_of(of: Descriptor) -> MessageRules:
    """The rules of a message of a contract."""
    return MessageRules(of)


class CallRules:
    """The rules of a method: what its requests name, and what it changes."""

    def __init__(self, service: str, of: MethodDescriptor) -> None:
        self.service = service
        """How files of principals call the service; empty for a service that every principal may call."""
        self.name = of.name
        self._rules = of.GetOptions().Extensions[rules_pb2.method]
        self._request, self._answer = rules_of(of.input_type), rules_of(of.output_type)
        self.change = self._rules.change
        """What it changes, in a word for the audit log. Empty: nothing."""
        self.needs_admin = self._rules.needs_admin and self._request.dry_run is None
        """Whether every request needs admin rights."""

    def used(self, request: Any) -> list[tuple[str, str]]:
        """(Kind, name) of each resource of the request; `*` for all of a kind."""
        found = [*dict.fromkeys(self._request.used([request]))]
        every = KINDS.get(self._rules.all_of)
        if every is not None and all(kind != every for kind, _ in found):
            found.append((every, "*"))
        return found

    def changes(self, request: Any) -> bool:
        """Whether the request changes something that belongs into the audit log."""
        dry_run = self._request.dry_run
        return self.change != "" and not (dry_run is not None and dry_run(request))

    def refusal(self, caller: Principal, request: Any, used: Iterable[tuple[str, str]]) -> str | None:
        """Why the caller may not send the request that uses these resources; None if it may."""
        refused = None
        if self._rules.needs_admin and self.changes(request):
            refused = caller.may_administer("do this to what others hold")
        for field in self._request.for_admins:
            if field.get(request) in field.for_admins:
                refused = refused or caller.may_administer("take over what others hold")
        return refused or next(filter(None, (caller.may_use(kind, name) for kind, name in used)), None)

    def take_as_own(self, caller: Principal, request: Any) -> None:
        """Replace the ids in the request by the caller's own ids. An admin may name the id of another principal."""
        for message, name in () if caller.is_everybody else self._request.own_ids([request]):
            given = getattr(message, name)
            if given and not (caller.admin and _OWNER.fullmatch(given)):
                setattr(message, name, f"{given} (principal {caller.name})")

    def tell_as_own(self, caller: Principal, answer: Any) -> None:
        """Put back the ids of the caller's own that the answer has."""
        for message, name in () if caller.is_everybody else self._answer.own_ids([answer]):
            found = _OWNER.fullmatch(getattr(message, name))
            if found is not None and found[2] == caller.name:
                setattr(message, name, found[1])


def calls_of(services: Iterable[str]) -> dict[str, CallRules]:
    """The rules of the methods of some services, by their full paths.

    Args:
        services: full names.
    """
    found: dict[str, CallRules] = {}
    for full in services:
        try:
            service = Default().FindServiceByName(full)
        except KeyError:
            continue
        name = service.GetOptions().Extensions[rules_pb2.service]
        found |= {f"/{full}/{one.name}": CallRules(name, one) for one in service.methods}
    return found
