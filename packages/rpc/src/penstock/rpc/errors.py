"""Errors of the gRPC plumbing.

PenstockRpcError
├── RpcOptionError         a setting is missing, contradictory or unsafe
└── ServerStartError       the server could not bind or read its certificates
"""


class PenstockRpcError(Exception):
    """Base of all errors of this package."""


class RpcOptionError(PenstockRpcError, ValueError):
    """A setting is missing, contradictory or unsafe.

    `option` names the setting, `reason` says what to do.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class ServerStartError(PenstockRpcError):
    """The server could not bind to `address`."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"could not listen on {address}: {reason}")
        self.address = address
        self.reason = reason
