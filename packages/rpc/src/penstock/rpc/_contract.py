"""Clients and servicers derived from a contract: a protocol in Python, and the service of the same calls in proto.

Arguments, results and fields of dataclasses go to the fields of messages that have the same names. What has no field of
its name gives its own fields: a nested dataclass may be flat in a message. An enumeration's members have the names of
the contract, without their prefix.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cache, wraps
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    ParamSpec,
    Self,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import grpc
from google.protobuf.message_factory import GetMessageClass

from penstock.proto.rules.v1 import rules_pb2
from penstock.rpc._client.channel import open_aio_channel
from penstock.rpc._pages import all_pages, cut_page, list_of
from penstock.rpc._security.security import ClientSecurity
from penstock.rpc._status import StatusTable, errors_as_status

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor
    from google.protobuf.message import Message


P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
M = TypeVar("M", bound="Message")
_ELLIPSIS: Final = "…"
_SHORT: Final = 200
"""Characters that each text for people may have."""
_WORD: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@cache
def _hints(of: Any) -> dict[str, Any]:
    hints = get_type_hints(of)
    return {one.name: hints[one.name] for one in fields(of)} if is_dataclass(of) else hints


def _plain(hint: Any) -> tuple[Any, bool]:
    """A type without None, and whether None was in it."""
    kinds = get_args(hint)
    if NoneType not in kinds:
        return hint, False
    return next(kind for kind in kinds if kind is not NoneType), True


class Messages:
    """Values of a package as messages, and back.

    Args:
        unknown: by enumeration: the member to use for a value that is unspecified, or newer than this release.
        unspecified: by enumeration: the member to use for a value that is unspecified, and for no other.
        by_hand: by type: functions to its message and from it, for what differs from its message; of a repeated field
            to its messages and from them.
        invalid: makes the error for a field whose value cannot be used, of its name and the value.
    """

    def __init__(
        self,
        *,
        unknown: Mapping[type[Enum], Enum] = {},
        unspecified: Mapping[type[Enum], Enum] = {},
        by_hand: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {},
        invalid: Callable[[str, object], Exception],
    ) -> None:
        self._unknown = unknown
        self._unspecified = {**unknown, **unspecified}
        self._by_hand = by_hand
        self.invalid = invalid

    def to(self, kind: type[M], value: Any) -> M:
        """A message of the values of a mapping or a dataclass. None leaves a field unset."""
        message, known = kind(), kind.DESCRIPTOR.fields_by_name
        for name, one in self._flat(value, known).items():
            if one is None:
                continue
            if known[name].is_repeated:
                hand = self._by_hand.get(type(one))
                made = (self.out(known[name], each) for each in one) if hand is None else hand[0](one)
                getattr(message, name).extend(made)
            elif known[name].message_type is not None:
                getattr(message, name).CopyFrom(self.out(known[name], one))
            else:
                setattr(message, name, self.out(known[name], one))
        return message

    def _flat(self, value: Any, known: Mapping[str, Any]) -> dict[str, Any]:
        given = value if isinstance(value, Mapping) else {one.name: getattr(value, one.name) for one in fields(value)}
        flat: dict[str, Any] = {}
        for name, one in given.items():
            if name not in known and is_dataclass(one):
                flat |= self._flat(one, known)
        return flat | {name: one for name, one in given.items() if name in known}

    def out(self, of: Any, value: Any) -> Any:
        """The value of a field, or of an entry of it."""
        if of.message_type is not None:
            hand = self._by_hand.get(type(value))
            return self.to(GetMessageClass(of.message_type), value) if hand is None else hand[0](value)
        if of.enum_type is not None and isinstance(value, Enum):
            return of.enum_type.values_by_name[_prefix(of.enum_type) + value.name].number
        return shortened(of, value) if isinstance(value, str) and len(value) > _SHORT else value

    def of(self, kind: type[T], message: Message, **more: Any) -> T:
        """A dataclass of a message; `more` are the values of fields that the message does not have."""
        return kind(**self.values(_hints(kind), message, more), **more)  # type: ignore[arg-type]  # a class

    def values(self, hints: Mapping[str, Any], message: Message, but: Mapping[str, Any] = {}) -> dict[str, Any]:
        """The values of a message's fields, by name and type, except some fields."""
        known = message.DESCRIPTOR.fields_by_name
        found: dict[str, Any] = {}
        for name, hint in hints.items():
            if name in but:
                continue
            if name in known:
                found[name] = self._value(message, known[name], hint)
            elif is_dataclass(hint):
                found[name] = self.of(hint, message)  # type: ignore[arg-type]  # a class
        return found

    def _value(self, message: Message, of: Any, hint: Any) -> Any:
        kind, may_be_none = _plain(hint)
        value = getattr(message, of.name)
        if of.is_repeated and kind in self._by_hand:
            return self._by_hand[kind][1](value)
        if of.is_repeated:
            made = (self._in(of, one, get_args(kind)[0]) for one in value)
            return tuple(made) if get_origin(kind) is tuple else list(made)
        if may_be_none and not (message.HasField(of.name) if of.has_presence else value):
            return None
        return self._in(of, value, kind, may_be_none=may_be_none)

    def _in(self, of: Any, value: Any, kind: Any, *, may_be_none: bool = False) -> Any:
        if kind in self._by_hand:
            return self._by_hand[kind][1](value)
        if of.message_type is not None:
            return self.of(kind, value)
        if of.enum_type is None:
            return value
        member = of.enum_type.values_by_number.get(value)
        name = "" if member is None else member.name.removeprefix(_prefix(of.enum_type))
        if name in kind.__members__:
            return kind[name]
        found = (self._unknown if value else self._unspecified).get(kind)
        if found is None and not may_be_none:
            raise self.invalid(of.name, value)
        return found


def shortened(of: FieldDescriptor, value: str) -> str:
    """A text for people as the contract takes it: a text that is too long ends with an ellipsis."""
    rules = of.GetOptions().Extensions[rules_pb2.field]
    if not rules.is_shortened or len(value.encode()) <= rules.max_bytes:
        return value
    return value.encode()[: rules.max_bytes - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


@cache
def _prefix(enum: EnumDescriptor) -> str:
    return _WORD.sub("_", enum.name).upper() + "_"


@dataclass(frozen=True)
class Rpc:
    """A call of a contract.

    Attributes:
        name: in the contract.
        result: field of the response that holds the result; without one, the response has the fields of the result.
        request: makes the request of the arguments, where their names do not.
        arguments: makes some arguments of the request, where their names do not.
        returned: makes the result of the response and the arguments, where names do not.
        response: makes the response of the result, where names do not.
    """

    name: str
    result: str = ""
    request: Callable[[dict[str, Any]], Any] | None = None
    arguments: Callable[[Any], dict[str, Any]] = field(default=lambda _: {})
    returned: Callable[[Any, dict[str, Any]], Any] | None = None
    response: Callable[[Any], Any] | None = None


class Contract:
    """The calls of a protocol, and how they cross the wire.

    Args:
        api: the protocol.
        service: what the proto file says of it.
        rpcs: by the names of the protocol's methods.
        messages: converts values.
        status: the status of each error.
    """

    def __init__(
        self, api: type, service: ServiceDescriptor, rpcs: Mapping[str, Rpc], messages: Messages, status: StatusTable
    ) -> None:
        self.service = service
        self.rpcs = rpcs
        self.status = status
        self._messages = messages
        self._methods = {name: getattr(api, name) for name in rpcs}

    def described(self, name: str) -> MethodDescriptor:
        """What the proto file says of a method of the protocol."""
        return self.service.methods_by_name[self.rpcs[name].name]

    def request(self, name: str, arguments: dict[str, Any]) -> Any:
        """The request of a call."""
        rpc, kind = self.rpcs[name], GetMessageClass(self.described(name).input_type)
        known = kind.DESCRIPTOR.fields_by_name
        for option, hint in _hints(self._methods[name]).items():
            # Zero would mean on the wire that nothing was given.
            if arguments.get(option) == 0 and _plain(hint)[1] and option in known and not known[option].has_presence:
                raise self._messages.invalid(option, 0)
        return self._messages.to(kind, arguments) if rpc.request is None else rpc.request(arguments)

    def arguments(self, name: str, request: Any) -> dict[str, Any]:
        """The arguments of a call."""
        hints = {key: hint for key, hint in _hints(self._methods[name]).items() if key != "return"}
        more = self.rpcs[name].arguments(request)
        return self._messages.values(hints, request, more) | more

    def response(self, name: str, result: Any, request: Any) -> Any:
        """The response to a call; of a list, the page that the request asks for."""
        rpc, kind = self.rpcs[name], GetMessageClass(self.described(name).output_type)
        if rpc.response is not None:
            return rpc.response(result)
        if list_of(kind.DESCRIPTOR) is not None:
            try:
                return cut_page(kind(), result, request, self._messages.out)
            except ValueError as error:
                raise self._messages.invalid("page_token", request.page_token) from error
        if rpc.result:
            return self._messages.to(kind, {rpc.result: result})
        return kind() if result is None else self._messages.to(kind, result)

    def result(self, name: str, response: Any, arguments: dict[str, Any]) -> Any:
        """The result of a call."""
        rpc = self.rpcs[name]
        if rpc.returned is not None:
            return rpc.returned(response, arguments)
        hint = _hints(self._methods[name])["return"]
        if not rpc.result:
            return self._messages.of(hint, response) if isinstance(hint, type) and is_dataclass(hint) else None
        if not inspect.iscoroutinefunction(self._methods[name]):
            hint = get_args(hint)[0]
        return self._messages.values({rpc.result: hint}, response)[rpc.result]


def calls(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of a `RemoteApi` that calls the method of this name of the service.

    A call or stream that ends with UNAUTHENTICATED is repeated once if the token comes from a file: the file is read
    again. A stream then begins again with the present state.
    """
    name, signature = method.__name__, inspect.signature(method)

    def arguments_of(self: RemoteApi, arguments: Any, named: Any) -> dict[str, Any]:
        bound = signature.bind(self, *arguments, **named)
        bound.apply_defaults()
        return dict(list(bound.arguments.items())[1:])

    async def ask(self: RemoteApi, *arguments: Any, **named: Any) -> Any:
        given = arguments_of(self, arguments, named)
        return self.contract.result(name, await self._all(name, given), given)

    async def follow(self: RemoteApi, *arguments: Any, **named: Any) -> AsyncGenerator[Any, None]:
        given = arguments_of(self, arguments, named)
        may_renew = True
        while True:
            call = self._method(self.contract.rpcs[name].name)(self.contract.request(name, given))
            try:
                async for response in call:
                    may_renew = True
                    yield self.contract.result(name, response, given)
                return
            except grpc.RpcError as error:
                if not (may_renew and self._security.may_be_renewed(error)):
                    raise self._error(error, self.contract.rpcs[name].name) from error
                may_renew = False
            finally:
                call.cancel()

    return wraps(method)(ask if inspect.iscoroutinefunction(method) else follow)  # type: ignore[return-value]  # as it


class RemoteApi:
    """A service behind an endpoint (`host:port`), for the event loop that first uses it.

    An async context manager: leaving it closes the channel, which connects at the first call.

    Args:
        endpoint: of the service.
        security: TLS and token; none unless given.
        timeout_seconds: deadline of each call but streams, in addition to its argument `wait_seconds`; None for none.
    """

    contract: ClassVar[Contract]

    def __init__(
        self, endpoint: str, security: ClientSecurity | None = None, *, timeout_seconds: float | None = None
    ) -> None:
        self._endpoint = endpoint
        self._security = security or ClientSecurity()
        self._timeout_seconds = timeout_seconds
        self._channel: grpc.aio.Channel | None = None

    def _error(self, error: grpc.RpcError, operation: str) -> Exception:
        """The error of the package that a failed call means."""
        raise NotImplementedError

    def _open(self) -> grpc.aio.Channel:
        if self._channel is None:
            self._channel = open_aio_channel(self._endpoint, self._security)
        return self._channel

    def _method(self, operation: str) -> Any:
        """The call of this name in the contract."""
        method = self.contract.service.methods_by_name[operation]
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        return getattr(self._open(), kind)(
            f"/{self.contract.service.full_name}/{operation}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

    async def _all(self, name: str, arguments: dict[str, Any], is_enough: Callable[[Any], bool] | None = None) -> Any:
        """The response to a call; of a list, its pages as one, until they are enough."""
        rpc, request = self.contract.rpcs[name], self.contract.request(name, arguments)
        if list_of(self.contract.described(name).output_type) is None:
            return await self._ask(rpc.name, request, arguments)
        return await all_pages(lambda: self._ask(rpc.name, request, arguments), request, is_enough)

    async def _ask(self, operation: str, request: Any, arguments: Mapping[str, Any]) -> Any:
        timeout = self._timeout_seconds
        if timeout is not None:
            timeout += max(0.0, arguments.get("wait_seconds", 0.0))
        try:
            return await self._call(operation, request, timeout)
        except grpc.RpcError as error:
            raise self._error(error, operation) from error

    async def _call(self, operation: str, request: Any, timeout: float | None) -> Any:
        """Make a unary call; once more if the token file may have been replaced while the call waited."""
        method = self._method(operation)
        try:
            return await method(request, timeout=timeout)
        except grpc.RpcError as error:
            if not self._security.may_be_renewed(error):
                raise
            return await method(request, timeout=timeout)

    async def close(self) -> None:
        """Close the channel. May be repeated."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Servicer:
    """Serves the calls of a contract; typed errors become status codes, with their fields in the metadata.

    A subclass may have a method by the name of a call in the contract, which is served in place of the derived one.
    """

    contract: ClassVar[Contract]

    def __init__(self, api: Any) -> None:
        self._api = api

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        handlers = {}
        for method in self.contract.service.methods:
            kind = "stream" if method.client_streaming else "unary"
            make = getattr(grpc, f"{kind}_{'stream' if method.server_streaming else 'unary'}_rpc_method_handler")
            handlers[method.name] = make(
                getattr(self, method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
        handler = grpc.method_handlers_generic_handler(self.contract.service.full_name, handlers)
        server.add_generic_rpc_handlers((handler,))

    def __getattr__(self, operation: str) -> Any:
        """The derived call of this name in the contract."""
        method = self.contract.service.methods_by_name.get(operation)
        name = next((name for name, rpc in self.contract.rpcs.items() if rpc.name == operation), None)
        if method is None or name is None:
            raise AttributeError(operation)
        return self._follow(name) if method.server_streaming else self._answer(name)

    def _answer(self, name: str) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            async with errors_as_status(context, self.contract.status):
                result = await getattr(self._api, name)(**self.contract.arguments(name, request))
                return self.contract.response(name, result, request)

        return answer

    def _follow(self, name: str) -> Any:
        async def follow(request: Any, context: Any) -> AsyncIterator[Any]:
            async with errors_as_status(context, self.contract.status):
                arguments = self.contract.arguments(name, request)
                async with aclosing(getattr(self._api, name)(**arguments)) as results:
                    async for result in results:
                        yield self.contract.response(name, result, request)

        return follow
