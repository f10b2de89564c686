"""Ways to break the rules of reading at one point, each of which the model has to find."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from penstock.efo_consumer import ShardPosition, StreamKeys
from penstock.efo_consumer._continuity import guard
from penstock.efo_consumer._continuity.rule import Verdict
from penstock.efo_consumer._reader import local, reach, replay, shard, shards
from penstock.efo_consumer._reader.horizon import Horizon
from penstock.efo_consumer._remote import fleet
from penstock.efo_consumer._wire import kpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager


@contextmanager
def _replaced(owners: Sequence[object], name: str, by: object) -> Iterator[None]:
    with ExitStack() as stack:
        for owner in owners:
            stack.enter_context(patch.object(owner, name, by))
        yield


def _continuous(*_: object, **__: object) -> Verdict:
    return Verdict.CONTINUOUS


def _nothing(*_: object, **__: object) -> None:
    return None


async def _at_once(*_: object, **__: object) -> None:
    return


def _is_not(*_: object, **__: object) -> bool:
    return False


def _at_the_beginning(_: object) -> ShardPosition:
    return ShardPosition.trim_horizon()


_to_json = ShardPosition.to_json


def _without_first(position: ShardPosition) -> dict[str, Any]:
    return {name: value for name, value in _to_json(position).items() if name != "first"}


BREAKS: Mapping[str, Callable[[], AbstractContextManager[None]]] = {
    "no time is compared": partial(_replaced, [guard], "judge", _continuous),
    "a retention period that was lowered is not asked for": partial(_replaced, [guard.ShardGuard], "prove", _at_once),
    "a retention period that was raised is trusted": partial(_replaced, [guard], "is_kept", _is_not),
    "the oldest record is not compared": partial(_replaced, [guard], "judge_oldest", _continuous),
    "a range's first record is not logged": partial(_replaced, [ShardPosition], "to_json", _without_first),
    "a range's last record is not missed": partial(_replaced, [replay.Replay], "_check_end", _at_once),
    "creation times are not compared": partial(_replaced, [guard, shard], "check_created", _nothing),
    "children know nothing of their parents": partial(_replaced, [shards, reach, fleet], "entering", _at_the_beginning),
    "shards do not wait for slower ones": partial(_replaced, [Horizon], "find", _nothing),
    "what is lost is not told": partial(_replaced, [guard, local, shard, replay], "report", _nothing),
    "user records of a sibling are delivered": partial(_replaced, [StreamKeys], "_parent_of", _nothing),
    "user records outside of their shard are dropped": partial(_replaced, [kpl], "_OUTSIDE", kpl._OF_SIBLING),
    "a faulty user record is dropped": partial(_replaced, [kpl], "_MALFORMED", kpl._OF_SIBLING),
}
