"""Pages of lists: each entry once, in order, whatever changes between two pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import all_pages, cut_page

LONG = "€" * 340
"""Of 1,020 bytes, as a session id may have."""


@dataclass(frozen=True)
class Shard:
    stream_name: str
    shard_id: str


@dataclass(frozen=True)
class Session:
    session_id: str
    shards: tuple[Shard, ...] = ()


def message(_: Any, value: Session | Shard) -> Any:
    if isinstance(value, Shard):
        return pb.ShardStats(stream_name=value.stream_name, shard_id=value.shard_id)
    return pb.Session(session_id=value.session_id)


def page(sessions: list[Session], **asked: Any) -> pb.ListSessionsResponse:
    return cut_page(pb.ListSessionsResponse(), sessions, pb.ListSessionsRequest(**asked), message)


async def listed(sessions: list[Session], **asked: Any) -> tuple[pb.ListSessionsResponse, list[int]]:
    """The whole list, and the bytes of its pages."""
    request, sizes = pb.ListSessionsRequest(**asked), []

    async def ask() -> pb.ListSessionsResponse:
        answer = cut_page(pb.ListSessionsResponse(), sessions, request, message)
        sizes.append(answer.ByteSize())
        return answer

    return await all_pages(ask, request), sizes


def names(answer: pb.ListSessionsResponse) -> list[str]:
    return [one.session_id for one in answer.sessions]


async def test_pages_have_the_size_that_was_asked_for() -> None:
    """The last page names no further one."""
    sessions = [Session(f"s{number}") for number in (3, 1, 2)]
    first = page(sessions, page_size=2)
    assert names(first) == ["s1", "s2"]
    second = page(sessions, page_size=2, page_token=first.next_page_token)
    assert (names(second), second.next_page_token) == (["s3"], "")
    answer, sizes = await listed(sessions, page_size=1)
    assert (names(answer), len(sizes)) == (["s1", "s2", "s3"], 3)


async def test_lists_with_the_longest_names_come_in_pages_below_a_mebibyte() -> None:
    """With default pages, and with the inner list of one entry over several pages."""
    sessions = [Session(f"{number:04d}{LONG}") for number in range(3_000)]
    shards = tuple(Shard(LONG[:170], f"shardId-{number:012d}") for number in range(5_000))
    sessions += [Session("x", shards), Session("y", shards[:3]), Session("z")]
    answer, sizes = await listed(sessions)
    assert names(answer) == [one.session_id for one in sessions]
    assert [one.shard_id for one in answer.sessions[-3].shards] == [one.shard_id for one in shards]
    assert [len(one.shards) for one in answer.sessions[-2:]] == [3, 0]
    assert len(sizes) > 8
    assert max(sizes) < 600_000


async def test_an_entry_that_is_larger_than_a_page_is_on_a_page_of_its_own() -> None:
    sessions = [Session("a"), Session("b" * 700_000), Session("c")]
    answer, sizes = await listed(sessions)
    assert [name[0] for name in names(answer)] == ["a", "b", "c"]
    assert len(sizes) == 3


def test_entries_that_come_and_go_between_two_pages_change_no_other() -> None:
    """The page continues behind the last entry, also when that one is gone."""
    first = page([Session("b"), Session("d"), Session("f")], page_size=2)
    second = page([Session(name) for name in "aefg"], page_token=first.next_page_token)
    assert names(first) == ["b", "d"]
    assert names(second) == ["e", "f", "g"]
    shards = tuple(Shard("s", f"{number:06d}" + "x" * 1_000) for number in range(1_000))
    first = page([Session("a", shards), Session("b")])
    count = len(first.sessions[0].shards)
    second = page([Session("a", shards[: count - 1] + shards[count + 1 :])], page_token=first.next_page_token)
    assert second.sessions[0].shards[0].shard_id == shards[count + 1].shard_id
    assert names(page([Session("b")], page_token=first.next_page_token)) == ["b"]


@pytest.mark.parametrize("token", ["a", "YQBiAGMAZA", "/w", "_w", "YQBi"])
def test_tokens_of_no_service_are_refused(token: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of several kinds
        page([Session("a")], page_token=token)
