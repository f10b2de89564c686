"""Settings of services, declared once: a flag, an environment variable, a type and a range for each."""

import argparse
import ipaddress
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from penstock.rpc.errors import RpcOptionError

# Of gRPC's name resolvers, those that lead to a service.
_SCHEME: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|xds):.+")
_HOST: Final = re.compile(r"\[[0-9a-fA-F:.]+(%\w+)?\]|[^\s:/\[\]]+")


def is_loopback(host: str) -> bool:
    """Whether nothing but this machine can be behind the host name or address."""
    name = host.strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_of(endpoint: str) -> str:
    """The host of `host:port`, `[v6]:port`; a Unix socket counts as localhost."""
    if endpoint.startswith("unix:"):
        return "localhost"
    return endpoint.rpartition(":")[0] or endpoint


def check_no_user(endpoints: str, option: str = "endpoint") -> None:
    """Refuse endpoints with user information. Endpoints appear in errors, logs and spans.

    `penstock.aws` has a similar rule for URLs. The rules are apart because neither package depends on the other.

    Call it with the whole text of an option, before the text is split at commas: a password may hold a comma.

    Raises:
        RpcOptionError: there is user information; the error does not show the text.
    """
    if any("@" in one and not one.strip().startswith(("unix:", "unix-abstract:")) for one in endpoints.split(",")):
        raise RpcOptionError(option, "is host:port, without user and password")


def check_address(endpoint: str) -> None:
    """Refuse what is neither `host:port` nor of one of gRPC's schemes, which it would take for something else.

    Raises:
        RpcOptionError: the address is neither, or has user information.
    """
    check_no_user(endpoint)
    if _SCHEME.match(endpoint):
        return
    host, _, port = endpoint.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise RpcOptionError("endpoint", f"{endpoint!r} is not a HOST:PORT, such as 127.0.0.1:50051")


T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """A setting of a service.

    Attributes:
        name: with underscores. The flag has hyphens instead, and the environment variable is `<prefix>_<NAME>`.
        text: what the help says, before the name of the variable.
        kind: makes the value of the text that was given.
        least: the smallest value, if there is one.
        above: what the value must be more than, if there is such a number.
        most: the largest value, if there is one.
        choices: the words that are allowed, if only some are.
    """

    name: str
    text: str
    kind: Callable[[str], Any] = str
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, text: str) -> Any:
        """The value of a text.

        Raises:
            RpcOptionError: the text is not of the kind, or the value is out of its range.
        """
        value = read_number(self.name, text, self.kind, of="a whole number" if self.kind is int else "a number")
        if self.choices and value not in self.choices:
            raise RpcOptionError(self.name, f"{text!r} is unknown: choose {', '.join(self.choices)}")
        if self.least is not None and not value >= self.least:
            raise RpcOptionError(self.name, f"{text} must be at least {self.least:g}")
        if self.above is not None and not value > self.above:
            raise RpcOptionError(self.name, f"{text} must be more than {self.above:g}")
        if self.most is not None and not value <= self.most:
            raise RpcOptionError(self.name, f"{text} must be at most {self.most}")
        return value


def add_settings(parser: argparse.ArgumentParser, prefix: str, settings: Iterable[Setting]) -> None:
    """Add a flag for each setting, which falls back to its environment variable `<prefix>_<NAME>`."""
    for one in settings:
        variable = f"{prefix}_{one.name.upper()}"
        flag = "--" + one.name.replace("_", "-")
        parser.add_argument(flag, default=os.environ.get(variable), help=f"{one.text} [{variable}]")


def read_settings(arguments: argparse.Namespace, settings: Iterable[Setting]) -> dict[str, Any]:
    """The values of the settings that were given, by their names.

    Raises:
        RpcOptionError: a value cannot be used; the error names its setting.
    """
    given = ((one, getattr(arguments, one.name)) for one in settings)
    return {one.name: one.read(text) for one, text in given if text is not None}


def add_switch(parser: argparse._ActionsContainer, prefix: str, name: str, text: str) -> None:
    """Add a flag without a value, which falls back to the environment variable `<prefix>_<NAME>`.

    `read_switch` makes of it what it means.

    Args:
        parser: of the command, or a group of its flags.
        prefix: of the variables of the environment.
        name: of the setting, with underscores.
        text: what the help says, before the name of the variable.
    """
    variable = f"{prefix}_{name.upper()}"
    parser.add_argument(
        "--" + name.replace("_", "-"),
        action="store_const",
        const="true",
        default=os.environ.get(variable, ""),
        help=f"{text} [{variable}=true]",
    )


def read_switch(name: str, text: str) -> bool:
    """What the word of a switch means; an empty one is false.

    Raises:
        RpcOptionError: it is neither true nor false.
    """
    if text.lower() not in ("", "true", "false"):
        raise RpcOptionError(name, f"{text!r} is neither true nor false")
    return text.lower() == "true"


def read_number(name: str, text: str, kind: Callable[[str], T], *, of: str = "a number") -> T:
    """What the text of a number means.

    Args:
        name: of the setting, with underscores.
        text: what was given.
        kind: makes a number of it.
        of: what the error says that it is not.

    Raises:
        RpcOptionError: the text is not a number.
    """
    try:
        return kind(text)
    except (ValueError, OverflowError) as error:
        raise RpcOptionError(name, f"{text!r} is not {of}") from error


def flags_in(words: Sequence[str], add: Callable[[argparse.ArgumentParser, str], None], prefix: str) -> list[str]:
    """The flags of `add` that a command line contains. Environment variables do not count.

    Args:
        words: the command line.
        add: such as `ClientSettings.add_arguments`.
        prefix: of the variables of the environment.
    """
    parser = argparse.ArgumentParser(add_help=False)
    add(parser, prefix)
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    return [flag for action in parser._actions for flag in action.option_strings if flag in given]


def read_path(name: str, text: str) -> Path:
    """The path of a file of this machine.

    Raises:
        RpcOptionError: it is a URL, as other services take one. It would be a path below the working folder.
    """
    scheme, colon, rest = text.partition(":")
    is_of_file = bool(colon) and scheme.lower() in ("sqlite", "file")
    if not is_of_file and "://" not in text:
        return Path(text)
    # As the registry reads it, which takes any number of slashes for one.
    path = unquote("/" + rest.lstrip("/") if rest.startswith("/") else rest)
    cure = f"write {path}" if is_of_file and path.strip("/") else "give the path of a file of this machine"
    raise RpcOptionError(name, f"takes a path, not a URL: {cure}")
