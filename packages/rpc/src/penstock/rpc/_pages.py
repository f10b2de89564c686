"""Lists in pages, as the contract orders them: the server cuts a list, and the client joins its pages."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.proto.rules.v1 import rules_pb2

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")
_PAGE_BYTES: Final = 512 * 1024
_MOST_ENTRIES: Final = 1_000
_SEPARATOR: Final = "\0"
"""No name in a contract has control characters."""


class _List:
    """A list with an order, in a message of the contract."""

    def __init__(self, of: Any) -> None:
        self.field = of
        paths = of.GetOptions().Extensions[rules_pb2.field].order
        # A dataclass also has the fields of the messages in its message.
        self.names = [path.rpartition(".")[2] for path in paths]
        self.key_of_message = attrgetter(*paths)
        self.inner = list_of(of.message_type)

    def key(self, value: Any) -> list[str]:
        return [getattr(value, name) for name in self.names]

    def entries(self, message: Any) -> Any:
        return getattr(message, self.field.name)


@cache
def list_of(message: Descriptor) -> _List | None:
    """The list of a message that comes in pages; None without one."""
    fields = (one for one in message.fields if one.GetOptions().Extensions[rules_pb2.field].order)
    return next(map(_List, fields), None)


def cut_page(page: M, values: Iterable[Any], request: Any, out: Callable[[Any, Any], Any] = lambda _, one: one) -> M:
    """Fill a response with the page of a list that a request asks for.

    Args:
        page: the empty response.
        values: the whole list: dataclasses with the fields of the contract, or messages.
        request: has a page size and a page token.
        out: makes the message of a value; its first argument is the field.

    Raises:
        ValueError: the token was not made by a service.
    """
    pages = list_of(page.DESCRIPTOR)
    assert pages is not None  # the caller has looked
    inner, entries, room = pages.inner, pages.entries(page), _PAGE_BYTES
    last, last_part = _read(request.page_token, pages)
    # An entry comes again if its inner list was cut.
    waiting = [one for one in values if pages.key(one) > last or (last_part and pages.key(one) == last)]
    for value in sorted(waiting, key=pages.key):
        key, parts = pages.key(value), None
        if inner is not None:
            parts = inner.entries(value)
            value = replace(value, **{inner.field.name: ()})
            if last_part and key == last:
                parts = _behind(parts, last_part, inner)
        entry, is_begun = out(pages.field, value), False
        size = entry.ByteSize()
        for part in parts or (None,):
            made = None if inner is None or part is None else out(inner.field, part)
            size += 0 if made is None else made.ByteSize()
            is_full = size > room or (not is_begun and len(entries) == (request.page_size or _MOST_ENTRIES))
            if is_full and entries:
                page.next_page_token = _written(last + last_part)  # type: ignore[attr-defined]  # each page has one
                return page
            if not is_begun:
                entries.append(entry)
            if inner is not None and made is not None:
                inner.entries(entries[-1]).append(made)
            room, size, is_begun = room - size, 0, True
            last, last_part = key, [] if inner is None or part is None else inner.key(part)
        last_part = []
    return page


async def all_pages(ask: Callable[[], Awaitable[M]], request: Any, is_enough: Callable[[M], bool] | None = None) -> M:
    """The pages of a list as one response.

    Args:
        ask: sends the request, which asks for the next page each time.
        request: the message.
        is_enough: whether no more pages are wanted; the response keeps its `next_page_token` then.
    """
    whole: Any = await ask()
    while whole.next_page_token and not (is_enough is not None and is_enough(whole)):
        request.page_token = whole.next_page_token
        _join(whole, await ask())
    return whole  # type: ignore[no-any-return]  # as it was asked


def _join(whole: Any, page: Any) -> None:
    pages = list_of(whole.DESCRIPTOR)
    assert pages is not None  # it had a token
    entries, more, inner = pages.entries(whole), pages.entries(page), pages.inner
    if inner and entries and more and pages.key_of_message(entries[-1]) == pages.key_of_message(more[0]):
        inner.entries(entries[-1]).extend(inner.entries(more[0]))
        del more[0]
    entries.extend(more)
    whole.next_page_token = page.next_page_token


def _behind(parts: Any, key: list[str], inner: _List) -> list[Any]:
    """The parts behind the part of a key, or behind where it was."""
    keys = [inner.key(one) for one in parts]
    if key in keys:
        return [*parts[keys.index(key) + 1 :]]
    return [one for one, found in zip(parts, keys, strict=True) if found > key]


def _written(key: list[str]) -> str:
    return base64.urlsafe_b64encode(_SEPARATOR.join(key).encode()).decode().rstrip("=")


def _read(token: str, pages: _List) -> tuple[list[str], list[str]]:
    if not token:
        return [], []
    names = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True).decode().split(_SEPARATOR)
    count = len(pages.names)
    if len(names) not in (count, count + (0 if pages.inner is None else len(pages.inner.names))):
        raise ValueError(token)
    return names[:count], names[count:]
