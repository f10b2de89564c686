"""Wrong tokens: how many an address may send, and whom that concerns."""

import asyncio
import ipaddress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.rpc import Attempts, GrpcServer, RpcOptionError, ServerSecurity, ServerSettings

GUESSER, FRIEND = "203.0.113.7", "203.0.113.8"


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_ten_wrong_tokens_cost_nothing_and_more_cost_time() -> None:
    """A typing error is answered at once; nobody is shut out by them."""
    attempts = Attempts(clock=Clock())
    assert [attempts.wrong(GUESSER) for _ in range(10)] == [0.0] * 10
    delays = [attempts.wrong(GUESSER) for _ in range(20)]
    assert delays == sorted(delays)
    assert delays[-1] == pytest.approx(5.0)
    assert attempts.may_try(GUESSER, "right")
    assert attempts.wrong(FRIEND) == 0.0


@pytest.mark.parametrize("at_once", [1, 100])
def test_four_tokens_a_second_are_looked_at_however_many_come(at_once: int) -> None:
    """One after the other, and as many at a time as one likes, without waiting for the answers."""
    clock = Clock()
    attempts, looked_at = Attempts(clock=clock), 0
    begin = clock.now
    while clock.now < begin + 100:
        for _ in range(at_once):
            if attempts.may_try(GUESSER, "guess"):
                looked_at += 1
                attempts.wrong(GUESSER)
        clock.now += 0.01
    assert 400 <= looked_at <= 441


def test_those_who_were_right_before_get_in_while_another_of_their_address_guesses() -> None:
    """As behind a proxy; and when it ends, everybody does within ten seconds."""
    clock = Clock()
    attempts = Attempts(clock=clock)
    attempts.right(GUESSER, "right")
    while attempts.may_try(GUESSER, "guess"):
        attempts.wrong(GUESSER)
    assert attempts.may_try(GUESSER, "right")
    assert not attempts.may_try(GUESSER, "also right, but new")
    assert attempts.may_try(FRIEND, "right")
    clock.now += 1
    assert attempts.may_try(GUESSER, "also right, but new")


def test_addresses_of_one_network_of_ipv6_count_as_one() -> None:
    """Who has one of them has the others."""
    attempts = Attempts(clock=Clock())
    for number in range(40):
        attempts.wrong(f"2001:db8::{number:x}")
    assert not attempts.may_try("2001:db8::ffff", "guess")
    assert attempts.may_try("2001:db8:0:1::1", "guess")


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("ipv4:203.0.113.7:4711", "", GUESSER),
        ("ipv6:%5B2001:db8::1%5D:4711", "", "2001:db8::1"),
        ("::ffff:203.0.113.7", "", GUESSER),
        ("unix:", "", ""),
        (GUESSER, "198.51.100.1", GUESSER),
        ("10.0.0.1", "203.0.113.7", GUESSER),
        ("10.0.0.1", "made up, 203.0.113.7, 10.0.0.2", GUESSER),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7:4711", GUESSER),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("10.0.0.1", "made:up:here", "made:up:here"),
    ],
)
def test_only_trusted_proxies_say_where_a_call_comes_from(peer: str, forwarded: str, address: str) -> None:
    """The last that none of them added is believed: what a caller writes before it is not."""
    attempts = Attempts((ipaddress.ip_network("10.0.0.0/24"),))
    assert attempts.address(peer, forwarded) == address
    assert attempts.wrong(address) == 0


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    """In a setting, and in a file."""
    with pytest.raises(RpcOptionError, match="fewer than 16 characters"):
        ServerSecurity(token="s3cret")
    (tmp_path / "tokens").write_text("a-token-that-is-long-enough\ns3cret\n")
    with pytest.raises(RpcOptionError, match="fewer than 16 characters") as raised:
        ServerSecurity(token_file=tmp_path / "tokens").check_files()
    assert "s3cret" not in str(raised.value)
    assert ServerSettings().trusted_proxies == ()


async def test_a_right_guess_is_answered_as_a_wrong_one_after_too_many_of_them(tmp_path: Path) -> None:
    """By the server, also by health checks: it would have been found otherwise. Who was in before is answered."""
    (tmp_path / "tokens").write_text("the-token-of-a-friend\nthe-token-not-seen-yet\n")
    settings = ServerSettings(security=ServerSecurity(token_file=tmp_path / "tokens"), drain_seconds=0)
    server = GrpcServer(settings, register=[], service_names=[])
    async with server, grpc.aio.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        def check(token: str) -> grpc.aio.UnaryUnaryCall[Any, health_pb2.HealthCheckResponse]:
            sent = [("authorization", f"Bearer {token}")]
            call: grpc.aio.UnaryUnaryCall[Any, health_pb2.HealthCheckResponse] = health.Check(
                health_pb2.HealthCheckRequest(), metadata=sent, timeout=30
            )
            return call

        assert await check("the-token-of-a-friend").code() is grpc.StatusCode.OK
        guesses = [check(f"wrong-token-{number}") for number in range(60)]
        refused = 0
        for guess in asyncio.as_completed([guess.code() for guess in guesses]):
            refused += await guess is grpc.StatusCode.UNAVAILABLE
            if refused == 5:
                break
        assert await check("the-token-not-seen-yet").code() is grpc.StatusCode.UNAVAILABLE
        assert await check("the-token-of-a-friend").code() is grpc.StatusCode.OK
        for one in guesses:
            one.cancel()
