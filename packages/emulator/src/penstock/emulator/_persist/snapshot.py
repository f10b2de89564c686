"""From streams to plain values and back.

What a stream, a shard or a consumer holds is taken from its attributes: numbers, strings, containers of them, and the
value types of `_VALUES`. What belongs to one run (configuration, limits, listeners, look-up tables) is left to the
constructors.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.emulator._state.hash_keys import HashKeyRange
from penstock.emulator._state.limits import TokenBucket
from penstock.emulator._state.shard import Shard
from penstock.emulator._state.stream import Consumer, Stream

if TYPE_CHECKING:
    from penstock.emulator._state.kinesis import Kinesis

_VALUES: dict[str, type] = {item.__name__: item for item in (Consumer, HashKeyRange)}
_OF_ONE_RUN = {
    Stream: {"_config", "_conduct", "_new_epoch", "_by_id", "_open", "_starts", "shards"},
    Shard: {
        "log",
        "frames",
        "listeners",
        "on_append",
        "_conduct",
        "_sequence",
        "_issued",
        "_limited",
        "parents",
        "children",
    },
}
_PLAIN = (bool, float, str, bytes, type(None))
_MAX_PLAIN_INTEGER = 2**63

# Sequence numbers that a shard gave out for progress without records are not in the journal. None may be given out
# again, so a restart skips more of them than a run can use up.
_COUNTERS_PER_RUN = 2**32


def encode_stream(stream: Stream) -> dict[str, Any]:
    """The stream, its shards and its consumers, without records."""
    shards = [
        {
            "state": _attributes(shard),
            "epoch": shard.epoch,
            "timed": shard.timed,
            "parents": [parent.id for parent in shard.parents],
            "children": [child.id for child in shard.children],
        }
        for shard in stream.shards
    ]
    return {"state": _attributes(stream), "shards": shards}


def decode_stream(kinesis: Kinesis, content: dict[str, Any]) -> Stream:
    """Make a stream again; it is not in `kinesis.streams` yet."""
    state = content["state"]
    stream = Stream(
        name=state["name"],
        shard_count=1,
        mode=state["mode"],
        max_record_bytes=state["max_record_bytes"],
        config=kinesis.config,
        conduct=kinesis.conduct,
        new_epoch=kinesis.new_epoch,
        now=state["created"],
    )
    _restore(stream, state)
    shards: dict[str, Shard] = {}
    for item in content["shards"]:
        shard_state = {name: _decode(value) for name, value in item["state"].items()}
        shard = Shard(
            index=shard_state["index"],
            hash_keys=shard_state["hash_keys"],
            epoch=item["epoch"],
            now=shard_state["created"],
            config=kinesis.config,
            conduct=kinesis.conduct,
            timed=item.get("timed", True),
            parents=tuple(shards[parent] for parent in item["parents"]),
        )
        _restore(shard, item["state"])
        shards[shard.id] = shard
    for item, shard in zip(content["shards"], shards.values(), strict=True):
        shard.children = [shards[child] for child in item["children"]]
    stream.replace_shards(list(shards.values()))
    return stream


def skip_counters(shard: Shard, now: float) -> None:
    """Leave out the sequence numbers that the last run may have given out."""
    if shard.is_open:
        shard.skip(_COUNTERS_PER_RUN, now)


def _attributes(item: Stream | Shard) -> dict[str, Any]:
    left_out = _OF_ONE_RUN[type(item)]
    return {
        name: _encode(value)
        for name, value in vars(item).items()
        if name not in left_out and not isinstance(value, TokenBucket)
    }


def _restore(item: Stream | Shard, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(item, name, _decode(value))


def _encode(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, int):
        return value if abs(value) < _MAX_PLAIN_INTEGER else {"int": str(value)}
    if isinstance(value, list):
        return [_encode(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted(_encode(item) for item in value)}
    if isinstance(value, dict):
        return {"map": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, timedelta):
        return {"seconds": value.total_seconds()}
    if is_dataclass(value) and type(value).__name__ in _VALUES:
        return {"type": type(value).__name__, "fields": [_encode(getattr(value, item.name)) for item in fields(value)]}
    raise TypeError(f"no way to keep a {type(value).__name__}")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"int": text}:
            return int(text)
        case {"tuple": items}:
            return tuple(_decode(item) for item in items)
        case {"set": items}:
            return {_decode(item) for item in items}
        case {"map": pairs}:
            return {_decode(key): _decode(item) for key, item in pairs}
        case {"seconds": seconds}:
            return timedelta(seconds=seconds)
        case {"type": name, "fields": values}:
            kind = _VALUES[name]
            names = [item.name for item in fields(kind)]
            # Fields that were added since have defaults.
            return kind(**dict(zip(names, (_decode(item) for item in values), strict=False)))
    raise ValueError("not a value that was kept")
