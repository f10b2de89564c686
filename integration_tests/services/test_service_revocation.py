"""A client that is revoked in any file is rejected by every service from the next call on, and its open calls end."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration_tests.security_tools import (
    CONTRACTS,
    DEADLINE,
    TOKEN,
    Pki,
    Service,
    ask,
    path_of,
    raw_channel,
    running,
)

LOST = "the-token-that-leaks-with-32-characters"
ENDS_SECONDS = 60
"""As the documents say."""
HEALTH_WATCH = "/grpc.health.v1.Health/Watch"


class Open(threading.Thread):
    """A call of a client that says nothing, until the service ends it."""

    def __init__(self, channel: grpc.Channel, path: str, token: str) -> None:
        super().__init__()
        self.code: grpc.StatusCode | None = None
        self._client_ends = threading.Event()
        metadata = (("authorization", f"Bearer {token}"),)
        self._call: Any = channel.stream_stream(path, None, None)(
            self._nothing(), timeout=4 * ENDS_SECONDS, metadata=metadata
        )

    def _nothing(self) -> Iterator[bytes]:
        self._client_ends.wait()
        yield from ()

    def run(self) -> None:
        try:
            for _ in self._call:
                pass
            self.code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.code = error.code()
        finally:
            self._client_ends.set()

    def end(self) -> None:
        self._call.cancel()
        self.join(DEADLINE)


def put(file: Path, content: str) -> None:
    """As mounted files change: at once."""
    new = file.with_suffix(".new")
    new.write_text(content)
    new.replace(file)


def principals(*tokens: str) -> str:
    """Of such tokens, who may do all."""
    kinds = ("services", "streams", "consumers", "destinations", "jobs", "stores")
    rights = "admin = true\n" + "".join(f'{kind} = ["*"]\n' for kind in kinds)
    digests = [sha256(token.encode()).hexdigest() for token in tokens]
    return "".join(
        f'[[principal]]\nname = "p{number}"\ntoken_sha256 = "{digest}"\n{rights}'
        for number, digest in enumerate(digests)
    )


def waiting_method(service: Service) -> str:
    """One that streams, so that a call of it stays open."""
    return next(path_of(one) for one in service.methods if one.client_streaming or one.server_streaming)


@pytest.mark.parametrize("way", ["principal"])
def test_who_is_taken_back_is_refused_at_once_and_what_is_open_ends(way: str, tmp_path: Path) -> None:
    """At all services, one of two clients is revoked. The calls of the other one continue, also open ones."""
    pki, file = Pki(tmp_path), tmp_path / "file"
    ways = {
        "token": (f"{TOKEN}\n{LOST}\n", f"{TOKEN}\n", "TOKEN_FILE"),
        "principal": (principals(TOKEN, LOST), principals(TOKEN), "PRINCIPALS"),
    }
    before, after, option = ways[way]
    put(file, before)
    settings = {option: str(file), **pki.server_settings()}
    with ExitStack() as stack:
        services = [stack.enter_context(running(name, tmp_path, **settings)) for name in CONTRACTS]
        channels = [
            (
                stack.enter_context(raw_channel(service.address, pki.credentials("client"))),
                stack.enter_context(raw_channel(service.address, pki.credentials("client"))),
            )
            for service in services
        ]
        ending, staying = [], []
        for service, (theirs, ours) in zip(services, channels, strict=True):
            assert ask(theirs, service.quick(), token=LOST)[0] is grpc.StatusCode.OK
            for method in (waiting_method(service), HEALTH_WATCH):
                ending.append(Open(theirs, method, LOST))
                staying.append(Open(ours, method, TOKEN))
        for one in (*ending, *staying):
            stack.callback(one.end)
            one.start()
        put(file, after)
        begun = time.monotonic()
        for service, (theirs, ours) in zip(services, channels, strict=True):
            code, words = ask(theirs, service.quick(), token=LOST)
            assert code is grpc.StatusCode.UNAUTHENTICATED, (service.name, words)
            assert LOST not in words
            assert ask(ours, service.quick())[0] is grpc.StatusCode.OK, service.name
        for one in ending:
            one.join(ENDS_SECONDS - (time.monotonic() - begun))
        assert [one.code for one in ending] == [grpc.StatusCode.UNAUTHENTICATED] * 2 * len(services)
        assert [one.code for one in staying] == [None] * 2 * len(services)
        for service in services:
            log = service.errors.read_text()
            assert LOST not in log
            assert TOKEN not in log
