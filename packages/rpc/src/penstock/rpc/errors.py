"""Errors of the gRPC plumbing, and codes for errors that nothing catches by their class.

CodedError                 base of classes whose errors are told apart by a code
PenstockRpcError
├── RpcOptionError         a setting is missing, contradictory or unsafe
├── ServerStartError       the server could not bind or read its certificates
├── LoopThreadClosedError  a LoopThread was used after `close()`
└── LoopThreadForkedError  a LoopThread was used after a fork
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Self

_NO_FACTS: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Code:
    """What one code of a `CodedError` means. `penstock errors` prints it.

    Attributes:
        when: in which case the error is raised, as a sentence.
        message: a format string over the facts, such as `"stream {stream} has no shard {shard}"`.
        cure: what a user does about it.
    """

    when: str
    message: str
    cure: str


class CodedError(Exception):
    """Base of classes whose errors differ by a code.

    An error gets a class of its own only if some code catches it. Any other error is `SchedulingError.of("CODE", ...)`
    of the base: its message starts with the code; `code` and `facts` hold the rest. A class declares its codes as a
    literal, because `penstock errors` reads them without an import.

    Attributes:
        codes: the codes of the class.
        code: of this error; empty for an error of a class of its own.
        facts: the arguments of the message: plain data, so that the error crosses gRPC whole.
    """

    codes: ClassVar[Mapping[str, Code]] = MappingProxyType({})
    code: str = ""
    facts: Mapping[str, object] = _NO_FACTS

    @classmethod
    def of(cls, code: str, /, **facts: object) -> Self:
        """The error of a code.

        Raises:
            KeyError: the class does not declare the code, or its message needs a fact that is not given.
        """
        error = cls(f"[{code}] {cls.codes[code].message.format_map(facts)}")
        error.code, error.facts = code, facts
        return error


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
