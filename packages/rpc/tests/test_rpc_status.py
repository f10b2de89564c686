import json
import pickle
from typing import Any, ClassVar

import grpc
import pytest

from penstock.rpc import Code, CodedError, typed_error
from penstock.rpc._status import FIELDS_KEY, TYPE_KEY, abort_with


class HeldError(Exception):
    def __init__(self, *, holder: str) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder


class StoreError(CodedError):
    codes: ClassVar = {"STORE_FULL": Code(when="It is full.", message="{path} holds {count:,} leases", cure="Delete.")}


class RefusedError(StoreError):
    def __init__(self, *, code: str) -> None:
        super().__init__(code)
        self.code = code


class Answer(grpc.RpcError):
    def __init__(self, fields: str, kind: str = "HeldError") -> None:
        self.fields = fields
        self.kind = kind

    def trailing_metadata(self) -> Any:
        return (TYPE_KEY, self.kind), (FIELDS_KEY, self.fields)


class Context:
    async def abort(self, code: object, _details: str, trailer: tuple[tuple[str, str], ...]) -> None:
        self.code = code
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


async def test_an_error_with_a_code_crosses_whole_and_its_code_decides_the_status() -> None:
    error, context = StoreError.of("STORE_FULL", path="leases.db", count=1000), Context()
    assert str(error) == "[STORE_FULL] leases.db holds 1,000 leases"
    table = {StoreError: grpc.StatusCode.INTERNAL, "STORE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED}
    with pytest.raises(grpc.aio.AbortError):
        await abort_with(context, error, table)  # type: ignore[arg-type]
    assert context.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    arrived = typed_error(Answer(context.trailer[FIELDS_KEY], "StoreError"), [StoreError])
    assert isinstance(arrived, StoreError)
    assert (arrived.code, arrived.facts, str(arrived)) == (error.code, error.facts, str(error))


def test_an_unknown_code_of_a_newer_service_gives_no_typed_error() -> None:
    assert typed_error(Answer('{"code": "STORE_LOST", "facts": {}}', "StoreError"), [StoreError]) is None


def test_a_class_of_its_own_may_have_a_field_named_code() -> None:
    arrived = typed_error(Answer('{"code": "AccessDenied"}', "RefusedError"), [StoreError, RefusedError])
    assert isinstance(arrived, RefusedError)
    assert arrived.code == "AccessDenied"


def test_an_error_with_a_code_survives_pickling() -> None:
    error = StoreError.of("STORE_FULL", path="leases.db", count=1)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.facts, str(copy)) == (error.code, error.facts, str(error))
