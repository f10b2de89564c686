"""Errors of the gRPC plumbing.

PenstockRpcError
├── RpcOptionError         a setting is missing, contradictory or unsafe
├── ServerStartError       the server could not bind or read its certificates
├── LoopThreadClosedError  a LoopThread was used after `close()`
└── LoopThreadForkedError  a LoopThread was used after a fork
"""


class PenstockRpcError(Exception):
    """Base of all errors of this package."""


class RpcOptionError(PenstockRpcError, ValueError):
    """A setting is missing, contradictory or unsafe.

    `option` names the setting, `reason` says what to do.

    Cure: Correct the setting that is named, as `reason` says.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class ServerStartError(PenstockRpcError):
    """The server could not bind to `address`.

    Cure: Choose a free port (0 lets the system pick), and an address of this host.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"could not listen on {address}: {reason}")
        self.address = address
        self.reason = reason


class LoopThreadClosedError(PenstockRpcError):
    """A `LoopThread` was used after `close()`, or closed while a call waited.

    Cure: Make another one; do not use it after `close()`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is closed")
        self.name = name


class LoopThreadForkedError(PenstockRpcError):
    """A `LoopThread` was used in a child of the process that made it: threads do not survive a fork.

    Cure: Make one in each process, after the fork.
    """

    def __init__(self, name: str, *, made_in: int, used_in: int) -> None:
        super().__init__(f"{name} belongs to process {made_in} and cannot be used in {used_in}: make one there")
        self.name = name
        self.made_in = made_in
        self.used_in = used_in
