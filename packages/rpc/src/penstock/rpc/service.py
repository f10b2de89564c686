"""The command of a service: it serves until a signal ends it, and says in one line why it cannot start.

Only services import this module. It needs the extra `service`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from penstock.rpc._server.run import Served, run_service, set_up_logging
from penstock.rpc._status import explain_failure, failed_call
from penstock.rpc.errors import PenstockRpcError, RpcOptionError
from penstock.telemetry import Telemetry, TelemetryOptionError, configure
from penstock.terminal import ExitCode, describe_by_flag

if TYPE_CHECKING:
    import argparse

    from penstock.rpc._client.settings import ClientSettings

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class ServiceKind:
    """What the commands of a service share.

    Attributes:
        word: names its command: `registry` for `penstock registry`, whose variables begin with `PENSTOCK_REGISTRY`.
        errors: errors about settings, besides `PenstockRpcError`.
        flags: flags of options that have another name on the command line.
    """

    word: str
    errors: tuple[type[Exception], ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the service in its ready line and its telemetry."""
        return f"penstock-{self.word}"

    @property
    def prog(self) -> str:
        """The command."""
        return f"penstock {self.word}"

    @property
    def prefix(self) -> str:
        """The beginning of its environment variables."""
        return f"PENSTOCK_{self.word.upper()}"

    def refuse(
        self,
        error: Exception | str,
        arguments: argparse.Namespace | None = None,
        code: int = ExitCode.USAGE,
        **flags: str,
    ) -> int:
        """Write one line that says why the command ends, and give its exit code.

        Args:
            error: what is wrong.
            arguments: of the command, if the error may be about one of its flags.
            code: the exit code.
            flags: more flags of options that have another name in this command.
        """
        if arguments is not None and isinstance(error, Exception):
            error = describe_by_flag(error, arguments, self.prefix, **{**self.flags, **flags})
        sys.stderr.write(f"{self.prog}: {error}\n")
        return code

    def refuse_call(self, error: Exception, settings: ClientSettings | None, *, away: bool, text: str = "") -> int:
        """The same for a call of the running service that failed: what keeps it from the service, with the cure.

        Args:
            error: the call's error, or one that it caused.
            settings: how the service was called; None if it was not.
            away: whether the error alone means that the service is not there.
            text: what to write if the service has answered; without it, the text of the error.
        """
        call, cause = failed_call(error), None
        if call is not None and settings is not None:
            cause = explain_failure(call, settings, prefix=self.prefix, command=f"{self.prog} serve")
        text, away = cause or (text or str(error), away)
        return self.refuse(text, code=ExitCode.UNREACHABLE if away else ExitCode.FAILED)


def serve(
    kind: ServiceKind,
    arguments: argparse.Namespace,
    read: Callable[[argparse.Namespace], Settings],
    make: Callable[[Settings], AbstractAsyncContextManager[Served]],
) -> int:
    """Serve until SIGTERM or SIGINT, then drain. Returns the exit code: 2 if the service cannot start.

    Args:
        kind: the service.
        arguments: of its command.
        read: makes its settings of them.
        make: makes the server of the settings.
    """
    set_up_logging()
    expected: tuple[type[Exception], ...] = (PenstockRpcError, *kind.errors)
    telemetry = None
    try:
        settings = read(arguments)
        telemetry = set_up_telemetry(kind.name)
        return run_service(lambda: make(settings), name=kind.name)
    except expected as error:
        return kind.refuse(error, arguments)
    finally:
        if telemetry is not None:
            telemetry.shutdown()


def set_up_telemetry(service: str) -> Telemetry | None:
    """Export spans and metrics as the `OTEL_*` variables say.

    Returns what exports, to be shut down at the end; None when the variables name no exporter, which is the default.
    The address of the page for Prometheus, whose port the system may have chosen, is written to standard error.

    Raises:
        RpcOptionError: an exporter is not installed, or a variable cannot be used.
    """
    try:
        telemetry = configure(service)
    except TelemetryOptionError as error:
        raise RpcOptionError(error.option, error.reason) from error
    if telemetry.prometheus_address is not None:
        sys.stderr.write(f"{service}: metrics at http://{telemetry.prometheus_address}/metrics\n")
        sys.stderr.flush()
    return telemetry if telemetry.is_on else None
