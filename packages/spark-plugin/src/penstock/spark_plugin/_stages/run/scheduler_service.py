"""The stage scheduler that a run is told to, and the names that it is told under."""

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from penstock.operator_attributes import BlockingStageScheduler, open_stage_scheduler
from penstock.rpc import ClientSecurity

_PREFIX = "PENSTOCK_STAGES"


def open_service(
    endpoint: str | None, security: ClientSecurity | None, *, environment: Mapping[str, str] | None = None
) -> BlockingStageScheduler | None:
    """The service at an endpoint, or at the environment's; None where neither names one, or the endpoint is empty.

    Raises:
        penstock.rpc.RpcOptionError: A file cannot be read, or the token would cross the network in plain text.
    """
    environment = os.environ if environment is None else environment
    address = environment.get(f"{_PREFIX}_ENDPOINT") if endpoint is None else endpoint
    if not address:
        return None
    return open_stage_scheduler(address, security if security is not None else _security(environment))


def address_of(endpoint: str | None, *, environment: Mapping[str, str] | None = None) -> str:
    """The endpoint, for people."""
    environment = os.environ if environment is None else environment
    return (environment.get(f"{_PREFIX}_ENDPOINT") if endpoint is None else endpoint) or ""


def _security(environment: Mapping[str, str]) -> ClientSecurity:
    """By the variables that the service's commands have."""

    def path(name: str) -> Path | None:
        text = environment.get(f"{_PREFIX}_{name}")
        return Path(text) if text else None

    token = environment.get(f"{_PREFIX}_TOKEN") or None
    return ClientSecurity(
        ca_file=path("CA_FILE"),
        certificate_file=path("CERTIFICATE_FILE"),
        private_key_file=path("PRIVATE_KEY_FILE"),
        token=token,
        token_file=path("TOKEN_FILE") if token is None else None,
    )


def job_id(pipeline: str, store: Path) -> str:
    """The name of a pipeline's job: the same for as long as its store is, wherever that is mounted."""
    return f"{pipeline}-{folder_id(store)[:8]}"


def folder_id(folder: Path) -> str:
    """What a folder is known by to all drivers: made by the first that asks, and kept in it."""
    file = folder / ".id"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".id.{os.getpid()}.{secrets.token_hex(4)}"
        temporary.write_text(secrets.token_hex(16))
        try:
            os.link(temporary, file)
        except FileExistsError:
            pass  # another was first
        finally:
            temporary.unlink()
    text = file.read_text().strip()
    # A file that was emptied by hand still gives one name to all.
    return text or hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
