"""Operations on the tags of streams and stream consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.emulator.errors import invalid_argument, limit_exceeded

if TYPE_CHECKING:
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator._state.stream import Consumer, Stream

_MAX_TAGS = 50
_DEFAULT_PAGE = 50


def add_tags_to_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """AddTagsToStream."""
    stream = kinesis.find_stream(params)
    stream.tags = checked_tags(stream.tags, params["Tags"])
    return {}


def remove_tags_from_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """RemoveTagsFromStream; tags that are not there are passed over."""
    _remove(kinesis.find_stream(params), params["TagKeys"])
    return {}


def list_tags_for_stream(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListTagsForStream, in order of the keys, paged by ExclusiveStartTagKey."""
    stream = kinesis.find_stream(params)
    keys = sorted(key for key in stream.tags if key > params.get("ExclusiveStartTagKey", ""))
    limit = params.get("Limit", _DEFAULT_PAGE)
    return {"Tags": _listed(stream.tags, keys[:limit]), "HasMoreTags": len(keys) > limit}


def tag_resource(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """TagResource, for streams and consumers."""
    resource = _resource(kinesis, params["ResourceARN"])
    resource.tags = checked_tags(resource.tags, params["Tags"])
    return {}


def untag_resource(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """UntagResource, for streams and consumers."""
    _remove(_resource(kinesis, params["ResourceARN"]), params["TagKeys"])
    return {}


def list_tags_for_resource(kinesis: Kinesis, params: dict[str, Any], now: float) -> dict[str, Any]:
    """ListTagsForResource, for streams and consumers."""
    resource = _resource(kinesis, params["ResourceARN"])
    return {"Tags": _listed(resource.tags, sorted(resource.tags))}


def checked_tags(present: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    """The tags that a resource has with `more` of them, which replace those of the same key.

    Raises:
        KinesisError: InvalidArgumentException for a key that is reserved, LimitExceededException for too many tags.
    """
    for key in more:
        if key.lower().startswith("aws:"):
            raise invalid_argument(f"Tag keys must not start with aws:, as {key} does.")
    tags = present | more
    if len(tags) > _MAX_TAGS:
        raise limit_exceeded(f"A resource can have {_MAX_TAGS} tags at most.")
    return tags


def _resource(kinesis: Kinesis, arn: str) -> Stream | Consumer:
    if "/consumer/" in arn:
        return kinesis.find_consumer({"ConsumerARN": arn})
    return kinesis.find_stream({"StreamARN": arn})


def _remove(resource: Stream | Consumer, keys: list[str]) -> None:
    resource.tags = {key: value for key, value in resource.tags.items() if key not in keys}


def _listed(tags: dict[str, str], keys: list[str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": tags[key]} for key in keys]
