"""The stage scheduler that a run is told to, and the names that it is told under."""

import os
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
        penstock.rpc.RpcOptionError: a file cannot be read, or the token would cross the network in plain text.
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


def job_id(pipeline: str, store: str) -> str:
    """The name of a pipeline's job: the same for as long as its store is, by what that is known by."""
    return f"{pipeline}-{store[:8]}"
