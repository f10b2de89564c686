"""What the methods of a service act on: one table per service, beside its servicer.

It says which fields of which request name the resources that a caller must be allowed to use, what belongs to the
caller alone, and what is worth a line of the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.rpc._security.principals import RESOURCES, Principal

if TYPE_CHECKING:
    from google.protobuf.message import Message

_STREAM_ARN: Final = re.compile(r"arn:[^:]*:kinesis:[^:]*:[^:]*:stream/([^/]+)(?:/consumer/([^:/]+).*)?", re.DOTALL)
_OWNER: Final = re.compile(r"(.*) \(principal ([A-Za-z0-9._-]+)\)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class MethodRights:
    """What a method acts on. Fields are named by their path in the request, with dots; those in lists count each."""

    resources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Fields by kind (`streams`, `consumers`, `destinations`, `jobs`, `stores`). `a+b` are two fields with `:` between.
    An empty field names nothing; see `all_of`."""
    all_of: tuple[str, ...] = ()
    """Kinds of which the method is about all if no field names one: then the caller must be allowed `*`."""
    owned: str = ""
    """Field with the id of what belongs to the caller. The service knows it by an id of the caller's own."""
    tells_owned: tuple[str, ...] = ()
    """Fields of the answer with such ids."""
    admin: bool = False
    """Whether it acts on what others hold."""
    admin_unless: str = ""
    """Field that makes it harmless, such as a dry run: then no admin is needed, and nothing changes."""
    admin_if: tuple[str, int] | None = None
    """Field and value with which it acts on what others hold."""
    change: str = ""
    """What it changes, in a word for the audit log. Empty: nothing that matters there."""

    def __post_init__(self) -> None:
        unknown = {*self.resources, *self.all_of} - set(RESOURCES)
        assert not unknown, unknown

    def used(self, request: Message) -> list[tuple[str, str]]:
        """(Kind, name) of each resource of the request; `*` for all of a kind."""
        found = []
        for kind, paths in self.resources.items():
            names = [_name(kind, value) for path in paths for value in _values(request, path) if value]
            found += [(kind, name) for name in dict.fromkeys(names)]
            if not names and kind in self.all_of:
                found.append((kind, "*"))
        found += [(kind, "*") for kind in self.all_of if kind not in self.resources]
        return found

    def refusal(self, caller: Principal, request: Message) -> str | None:
        """Why the caller may not send the request; None if it may."""
        if self.admin_unless and not getattr(request, self.admin_unless):
            refused = caller.may_administer("do this to what others hold")
            if refused is not None:
                return refused
        if self.admin_if is not None and getattr(request, self.admin_if[0]) == self.admin_if[1]:
            refused = caller.may_administer("take over what others hold")
            if refused is not None:
                return refused
        for kind, value in self.used(request):
            refused = caller.may_use(kind, value)
            if refused is not None:
                return refused
        return None

    def changes(self, request: Message) -> bool:
        """Whether the request changes something that belongs into the audit log."""
        return self.change != "" and not (self.admin_unless and getattr(request, self.admin_unless))

    def take_as_own(self, caller: Principal, request: Any) -> None:
        """Put the caller's own id in the place of that in the request. An admin may name that of another."""
        owned = getattr(request, self.owned) if self.owned and not caller.is_everybody else ""
        if owned and not (caller.admin and _OWNER.fullmatch(owned)):
            setattr(request, self.owned, f"{owned} (principal {caller.name})")

    def tell_as_own(self, caller: Principal, answer: Any) -> None:
        """Put back the ids of the caller's own that the answer has."""
        if caller.is_everybody:
            return
        for path in self.tells_owned:
            *steps, last = path.split(".")
            for message in _messages(answer, steps):
                found = _OWNER.fullmatch(getattr(message, last))
                if found is not None and found[2] == caller.name:
                    setattr(message, last, found[1])


@dataclass(frozen=True)
class ServiceRights:
    """What the methods of a service act on. A method that is not in the table is refused to all principals.

    Attributes:
        name: how files of principals call the service, such as `shard-reader`.
        service: its full name in the contract.
        methods: by their names; all of the contract.
    """

    name: str
    service: str
    methods: Mapping[str, MethodRights]


def _values(message: Any, path: str) -> Iterator[str]:
    if "+" in path:
        parts = [next(_values(message, one), "") for one in path.split("+")]
        # Without the last one it names nothing.
        yield ":".join(parts) if parts[-1] else ""
        return
    *steps, last = path.split(".")
    for one in _messages(message, steps):
        value = getattr(one, last)
        yield from [value] if isinstance(value, str) else value


def _messages(message: Any, steps: list[str]) -> Iterator[Any]:
    if not steps:
        yield message
        return
    value = getattr(message, steps[0])
    if hasattr(value, "DESCRIPTOR"):
        if message.HasField(steps[0]):
            yield from _messages(value, steps[1:])
        return
    for one in value:
        yield from _messages(one, steps[1:])


def _name(kind: str, value: str) -> str:
    """What globs are compared with: the name in an ARN of Kinesis, and an id without whose it is."""
    if kind == "jobs":
        found = _OWNER.fullmatch(value)
        return value if found is None else found[1]
    if kind in ("streams", "consumers") and (found := _STREAM_ARN.fullmatch(value)):
        return found[1] if kind == "streams" else found[2] or value
    if kind == "destinations" and value.startswith("kinesis:") and (found := _STREAM_ARN.fullmatch(value[8:])):
        return f"kinesis:{found[1]}"
    return value
