"""The control API under `/_emulator/`: JSON in and out, on the ports of the emulator itself."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from penstock.emulator._clock import AdjustableClock
from penstock.emulator._config import Behaviour
from penstock.emulator.errors import EmulatorConfigError, EmulatorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.emulator._clock import Clock
    from penstock.emulator._dynamodb_streams import DynamoDbStreams
    from penstock.emulator._state.kinesis import Kinesis

PREFIX = "/_emulator/"
_MAX_ADVANCE_SECONDS = 100 * 365 * 86_400


class Statistics:
    """What was asked of an emulator since it started, or was reset."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Requests by operation."""
        self.errors: Counter[str] = Counter()
        """Error answers by code."""

    def clear(self) -> None:
        """Set all counters to zero."""
        self.calls.clear()
        self.errors.clear()


class _RefusedError(EmulatorError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _may_control(headers: dict[str, str], own_host: str) -> bool:
    """Whether the request comes from a program, or from a page of this emulator: a page may send a form anywhere.

    A page whose own name leads to this machine (DNS rebinding) calls by that name, and the browser sends no `Origin`
    with a GET. So the emulator answers by an address, which such a page cannot have, by `localhost`, by the name that
    it listens on, and by a name without a dot, such as the name of a container.
    """
    host, origin = headers.get("host") or headers.get(":authority", ""), headers.get("origin")
    try:
        name = urlsplit(f"//{host}").hostname or ""
        if "." in name and name != own_host.lower():
            ipaddress.ip_address(name)
        place = None if origin is None else urlsplit(origin).netloc
    except ValueError:
        return False
    if place is None:
        return headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return place == host != ""


class Control:
    """Answers control requests; the table of them is in the README."""

    def __init__(
        self,
        kinesis: Kinesis,
        clock: Clock,
        statistics: Statistics,
        *,
        reset: Callable[[], None],
        dynamodb_streams: DynamoDbStreams | None = None,
    ) -> None:
        self._kinesis = kinesis
        self._clock = clock
        self._statistics = statistics
        self._reset = reset
        self._routes: dict[tuple[str, str], Callable[[dict[str, Any]], dict[str, Any]]] = {
            ("GET", "health"): lambda _: {"status": "ok"},
            ("GET", "stats"): lambda _: self._stats(),
            ("GET", "clock"): lambda _: self._time(),
            ("POST", "clock"): self._advance,
            ("POST", "reset"): lambda _: self._forget(),
            ("GET", "behaviour"): lambda _: self._behaviour(),
            ("POST", "behaviour"): self._behave,
            ("GET", "faults"): lambda _: {"seed": kinesis.faults.seed, "faults": kinesis.faults.list()},
            ("POST", "faults"): self._add_fault,
            ("DELETE", "faults"): lambda _: {"cleared": kinesis.faults.clear()},
        }
        if dynamodb_streams is not None:
            self._routes["POST", "dynamodb-streams"] = dynamodb_streams.control

    def handle(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Answer a request: the HTTP status and a body of JSON."""
        try:
            if not _may_control(headers, self._kinesis.config.host):
                reason = (
                    "only programs and pages of the emulator's own address may use /_emulator/: call it by an "
                    "address, by localhost, by a name without a dot, or by the name of --host"
                )
                raise _RefusedError(403, reason)
            return 200, msgspec.json.encode(self._route(method, path.partition("?")[0].removeprefix(PREFIX), body))
        except _RefusedError as error:
            return error.status, msgspec.json.encode({"error": str(error)})
        except EmulatorConfigError as error:
            return 400, msgspec.json.encode({"error": str(error), "option": error.option})

    def _route(self, method: str, name: str, body: bytes) -> dict[str, Any]:
        if method == "DELETE" and name.startswith("faults/"):
            fault_id = name.removeprefix("faults/")
            if not self._kinesis.faults.clear(fault_id):
                raise _RefusedError(404, f"fault {fault_id} does not exist")
            return {"cleared": True}
        route = self._routes.get((method, name))
        if route is None:
            known = any(path == name for _, path in self._routes)
            raise _RefusedError(405 if known else 404, f"{method} {PREFIX}{name} does not exist")
        return route(_params(body))

    def _stats(self) -> dict[str, Any]:
        kinesis = self._kinesis
        return {
            "time": self._clock.time(),
            "calls": dict(self._statistics.calls),
            "errors": dict(self._statistics.errors),
            "subscriptions": kinesis.open_subscriptions,
            "streams": {
                stream.name: {
                    "shards": len(stream.shards),
                    "open_shards": len(stream.open_shards),
                    "consumers": len(stream.consumers),
                    "records": sum(len(shard.records) for shard in stream.shards),
                }
                for stream in kinesis.streams.values()
            },
        }

    def _time(self) -> dict[str, Any]:
        return {"time": self._clock.time(), "manual": isinstance(self._clock, AdjustableClock)}

    def _advance(self, params: dict[str, Any]) -> dict[str, Any]:
        seconds = params.get("advance_seconds")
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, (int, float))
            or not 0 <= seconds <= _MAX_ADVANCE_SECONDS
        ):
            raise _RefusedError(400, "advance_seconds must be a number of seconds, and not negative")
        if not isinstance(self._clock, AdjustableClock):
            raise _RefusedError(409, "the clock is real; start the emulator with manual_clock")
        self._clock.advance(seconds)
        return self._time()

    def _behaviour(self) -> dict[str, Any]:
        conduct = self._kinesis.conduct
        behaviour = conduct.behaviour
        return {"profile": behaviour.profile_name, "seed": conduct.seed, "behaviour": behaviour.as_dict()}

    def _behave(self, params: dict[str, Any]) -> dict[str, Any]:
        behaviour = self._kinesis.behaviour
        if "profile" in params:
            behaviour = Behaviour.profile(params["profile"])
        changes = {name: value for name, value in params.items() if name != "profile"}
        self._kinesis.behaviour = behaviour.changed(changes)
        return self._behaviour()

    def _forget(self) -> dict[str, Any]:
        self._kinesis.faults.clear()
        self._statistics.clear()
        self._kinesis.behaviour = self._kinesis.config.behaviour
        self._reset()
        return {"reset": True}

    def _add_fault(self, params: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(params.get("kind"), str):
            raise EmulatorConfigError(option="kind", reason="must be given")
        return {"id": self._kinesis.faults.add(**params)}


def _params(body: bytes) -> dict[str, Any]:
    try:
        params = msgspec.json.decode(body) if body else {}
    except msgspec.DecodeError as error:
        raise _RefusedError(400, "the body is not JSON") from error
    if not isinstance(params, dict):
        raise _RefusedError(400, "the body has to be an object")
    return params
