"""What a call that failed means to who made it from a command line, and what to do."""

from typing import Final

import grpc

from penstock.rpc._client.settings import ClientSettings
from penstock.rpc._status import TYPE_KEY

_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_AWAY: Final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def failed_call(error: BaseException | None) -> grpc.RpcError | None:
    """The failed call that an error tells of, somewhere below it."""
    while error is not None:
        if isinstance(error, grpc.RpcError):
            return error
        error = error.__cause__
    return None


def explain_failure(
    error: grpc.RpcError, settings: ClientSettings, *, prefix: str, command: str
) -> tuple[str, bool] | None:
    """What keeps a call from a service, with the cure, and whether the service cannot be talked to at all.

    None where the service itself has answered: its words say what is wrong.

    Args:
        error: a call that failed.
        settings: how it was made.
        prefix: of the variables of the environment, such as `PENSTOCK_REGISTRY`.
        command: that serves the service, such as `penstock-registry serve`.
    """
    if TYPE_KEY in dict(getattr(error, "trailing_metadata", lambda: None)() or ()):
        return None
    code = getattr(error, "code", lambda: None)()
    details = str(getattr(error, "details", lambda: None)() or "")
    endpoint, security = settings.endpoint, settings.security
    if code in _REFUSED:
        has = security.token is not None or security.token_file is not None
        cure = f"give the service's by --token-file or {prefix}_TOKEN"
        return f"{endpoint} refuses the caller: the token is {'wrong or expired' if has else 'missing'}: {cure}", False
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"{endpoint} is another service than {command} starts: correct the port", True
    if code not in _AWAY:
        return None
    for words, text in _told(prefix, command, uses_tls=security.uses_tls):
        if any(word in details for word in words):
            return f"{endpoint}: {text}", True
    if code is grpc.StatusCode.DEADLINE_EXCEEDED or "timed out" in details.lower():
        return f"{endpoint}: no answer in time: check the address, firewalls and the service's log", True
    return None


def _told(prefix: str, command: str, *, uses_tls: bool) -> list[tuple[tuple[str, ...], str]]:
    """Words of gRPC's details, and what they mean; the first that are found count."""
    told = [
        (
            ("too many wrong tokens",),
            "too many wrong tokens came from this address: wait for some seconds, and correct the jobs that send them",
        ),
        (
            ("WRONG_VERSION_NUMBER",),
            f"it does not speak TLS: leave --tls and --ca-file out (and unset {prefix}_CA_FILE), or start the service "
            "with a certificate",
        ),
        (
            ("not in peer certificate", "Hostname Verification", "HOSTNAME_MISMATCH"),
            "its certificate is of another name: use a name that is in it",
        ),
        (
            ("CERTIFICATE_VERIFY_FAILED",),
            f"its certificate is not trusted: give the PEM of the authority that signed it by --ca-file or "
            f"{prefix}_CA_FILE",
        ),
        (
            ("http1.x", "Failed parsing HTTP/2", "Expected SETTINGS"),
            "something else listens there, such as a web server: correct the port",
        ),
        (
            ("Connection refused", "No such file or directory"),
            f"nobody listens there: start it (`{command}`), or correct --endpoint ({prefix}_ENDPOINT)",
        ),
        (("lookup failed", "errors resolving"), "no such host: correct the name, or check DNS"),
        (("unreachable", "No route to host"), "there is no way to it: check the address, routes and firewalls"),
    ]
    if uses_tls:
        closed = "it ends the connection after the handshake: if it wants mutual TLS, give --certificate-file and "
        closed += "--private-key-file of an authority that it takes"
    else:
        closed = f"it ends the connection: if it speaks TLS, give --ca-file ({prefix}_CA_FILE) or --tls; else look "
        closed += "into its log"
    return [*told, (("Socket closed", "reset", "Broken pipe", "CERTIFICATE_REQUIRED", "alert"), closed)]
