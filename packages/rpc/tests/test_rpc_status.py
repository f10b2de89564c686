import json
from typing import Any

import grpc
import pytest

from penstock.rpc import typed_error
from penstock.rpc._status import FIELDS_KEY, TYPE_KEY, abort_with


class HeldError(Exception):
    def __init__(self, *, holder: str) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder


class Answer(grpc.RpcError):
    def __init__(self, fields: str) -> None:
        self.fields = fields

    def trailing_metadata(self) -> Any:
        return (TYPE_KEY, "HeldError"), (FIELDS_KEY, self.fields)


class Context:
    async def abort(self, _code: object, _details: str, trailer: tuple[tuple[str, str], ...]) -> None:
        self.trailer = dict(trailer)
        raise grpc.aio.AbortError


def test_an_error_of_a_newer_service_is_known_by_what_this_release_knows_of_it() -> None:
    """A field that came since is left out; one that lacks what is needed is not a typed error, and no other error."""
    newer = typed_error(Answer('{"holder": "job-1", "since": 3}'), [HeldError])
    assert isinstance(newer, HeldError)
    assert newer.holder == "job-1"
    for fields in ("{}", "[]", "no json"):
        assert typed_error(Answer(fields), [HeldError]) is None


async def test_notes_of_an_error_stay_at_home() -> None:
    """They are for the log of the service, and no fields."""
    error, context = HeldError(holder="job-1"), Context()
    error.add_note("from /etc/penstock/secret")
    with pytest.raises(grpc.aio.AbortError):
        await abort_with(context, error, {HeldError: grpc.StatusCode.ALREADY_EXISTS})  # type: ignore[arg-type]
    assert json.loads(context.trailer[FIELDS_KEY]) == {"holder": "job-1"}
