"""`penstock gc`: what dead processes left behind, shown and removed."""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.terminal import (
    Cell,
    Column,
    ExitCode,
    Parser,
    Row,
    Screen,
    Table,
    add_json_argument,
    age,
    describe_by_flag,
    size,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.efo_consumer import Leftover
    from penstock.registration import LeaseStore, Orphan
    from penstock.rpc import ClientSettings

_COLUMNS: Final = (
    Column("KIND"),
    Column("WHAT"),
    Column("SIZE", justify="right"),
    Column("AGE", justify="right"),
    Column("FATE"),
    Column("WHY"),
)
_FATES: Final = {"removed": "green", "due": "yellow", "failed": "red", "kept": "dim"}
_PREFIX: Final = "PENSTOCK_REGISTRY"
_VARIABLE: Final = f"{_PREFIX}_ENDPOINT"
_REGISTRY: Final = "--registry"
_AWS_FLAGS: Final = ("--region", "--endpoint-url", "--profile", "--ca-bundle")
_STORE_FLAGS: Final = ("--store", *_AWS_FLAGS)
_LOCAL: Final = "local"
_NONE: Final = "none"
# A lease counts as dead only when it was watched for its whole time to live and was not renewed.
_WATCH_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 2.0
_TELL_SECONDS: Final = 3.0
_EPILOG: Final = (
    "Nothing is removed without --remove. exit codes: 0 nothing is left over, or it was only shown or is removed, "
    "1 something could not be removed or looked at, 2 wrong usage, 3 the registry cannot be reached"
)


@dataclass(frozen=True)
class Finding:
    """Something that is left over, and what becomes of it.

    Attributes:
        kind: `reader` or `consumer`.
        what: a folder, or stream and consumer.
        nbytes: of its files; None for a consumer.
        age_seconds: since it was changed or came to the registry.
        fate: `due`, `removed`, `kept` or `failed`.
        why: for people.
    """

    kind: str
    what: str
    nbytes: int | None
    age_seconds: float
    fate: str
    why: str


class _RefusedError(Exception):
    """Flags that contradict each other, or are wrong: nothing is looked at."""


def main(argv: Sequence[str]) -> int:
    """Show what dead processes left behind, or remove it."""
    try:
        # What is looked at belongs to packages that need not be installed.
        import penstock.efo_consumer
        import penstock.registration
        import penstock.rpc  # noqa: F401  # all are needed
    except ImportError as error:
        sys.stderr.write(f'penstock gc: {error}: pip install "penstock-cli[gc]"\n')
        return ExitCode.FAILED
    arguments = _parser().parse_args(argv)
    given = {word.partition("=")[0] for word in argv if word.startswith("--")}
    # The store of a flag goes before the registry of the environment.
    if given.isdisjoint(_STORE_FLAGS):
        arguments.endpoint = arguments.endpoint or os.environ.get(_VARIABLE)
    try:
        settings = _settings(arguments, given)
    except _RefusedError as error:
        sys.stderr.write(f"penstock gc: {error}\n")
        return ExitCode.USAGE
    screen = Screen(sys.stdout, as_json=arguments.json)
    findings = [*_folders(arguments.folder, remove=arguments.remove)]
    consumers, code = asyncio.run(_consumers(arguments, settings))
    findings += consumers
    screen.show(Table(columns=_COLUMNS, rows=[_row(one) for one in findings], empty="nothing is left over"))
    if any(one.fate == "due" for one in findings):
        screen.say("penstock gc --remove removes what is due", "bold")
    if any(one.fate == "failed" for one in findings):
        return ExitCode.FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    from penstock.rpc import ClientSettings

    parser = Parser(
        prog="penstock gc",
        description="Show what processes that were killed left behind: sockets and shared memory of readers of "
        "this user on this machine, and stream consumers that no lease holds.",
        epilog=_EPILOG,
    )
    add_json_argument(parser)
    parser.add_argument("--remove", action="store_true", help="remove it; without it, only show it")
    parser.add_argument(
        "--folder",
        action="append",
        type=Path,
        metavar="FOLDER",
        help="further folders to look into, beside shared memory and temporary files",
    )
    consumers = parser.add_argument_group("consumers", "of whom the registry, or the store, made the registration")
    ClientSettings.add_arguments(consumers, _PREFIX, endpoint_flag=_REGISTRY)
    # That of the environment is taken where no flag is of a store.
    parser.set_defaults(endpoint=None)
    consumers.add_argument(
        "--store",
        metavar="URL",
        help="or the store of jobs without one: sqlite:///PATH, dynamodb://TABLE, local (default: the "
        "file that jobs use by default); none skips the consumers",
    )
    consumers.add_argument(
        "--region", help="of the store's streams; boto3's default chain decides when it is not given"
    )
    consumers.add_argument("--endpoint-url", metavar="URL", help="of Kinesis, for emulators and VPC endpoints")
    consumers.add_argument("--profile", help="of the shared configuration files")
    consumers.add_argument("--ca-bundle", metavar="FILE", help="PEM of the authorities to trust for AWS")
    return parser


def _settings(arguments: argparse.Namespace, given: set[str]) -> ClientSettings | None:
    """How the registry is reached; None where a store is looked into. What variables say contradicts no flag.

    Raises:
        _RefusedError: flags contradict each other, or one is wrong.
    """
    from penstock.registration import store_location
    from penstock.registration.errors import RegistrationOptionError
    from penstock.rpc import ClientSettings, RpcOptionError

    probe = argparse.ArgumentParser(add_help=False)
    ClientSettings.add_arguments(probe, _PREFIX, endpoint_flag=_REGISTRY)
    of_registry = [flag for action in probe._actions for flag in action.option_strings if flag in given]
    of_store = [flag for flag in _STORE_FLAGS if flag in given]
    if of_registry and of_store:
        text = "exclude each other: one is of a registry service, the other of a store"
        raise _RefusedError(f"{of_registry[0]} and {of_store[0]} {text}")
    if of_registry and arguments.endpoint is None:
        raise _RefusedError(f"{of_registry[0]} needs {_REGISTRY} (or {_VARIABLE})")
    if arguments.store == _NONE and (idle := [flag for flag in of_store if flag in _AWS_FLAGS]):
        raise _RefusedError(f"{idle[0]} and --store none exclude each other: no consumers are looked at")
    gone = next((folder for folder in arguments.folder or () if not os.path.isdir(folder)), None)
    if gone is not None:
        raise _RefusedError(f"--folder: {gone} does not exist")
    try:
        if arguments.endpoint is not None:
            return ClientSettings.from_arguments(arguments, _PREFIX)
        if arguments.store not in (None, _LOCAL, _NONE):
            store_location(arguments.store)
    except (RpcOptionError, RegistrationOptionError) as error:
        raise _RefusedError(describe_by_flag(error, arguments, _PREFIX, endpoint=_REGISTRY, store="--store")) from error
    return None


def _folders(further: Sequence[Path] | None, *, remove: bool) -> Iterator[Finding]:
    from penstock.efo_consumer import find_leftovers

    found = {one.path: one for one in [*find_leftovers(), *(find_leftovers(further) if further else ())]}
    for one in found.values():
        yield _folder(one, remove=remove)


def _folder(one: Leftover, *, remove: bool) -> Finding:
    fate, why = "due", "its process is dead"
    if remove:
        is_gone = one.remove()
        fate, why = ("removed", why) if is_gone else ("failed", "it cannot be removed: look at its permissions")
    return Finding("reader", str(one.path), one.nbytes, one.age_seconds, fate, why)


async def _consumers(arguments: argparse.Namespace, settings: ClientSettings | None) -> tuple[list[Finding], int]:
    from penstock.aws import AwsError
    from penstock.registration.errors import RegistrationError
    from penstock.rpc import PenstockRpcError, explain_failure, failed_call

    try:
        async with _collector(arguments, settings) as collect:
            if collect is None:
                return [], ExitCode.OK
            return await _collected(collect, remove=arguments.remove), ExitCode.OK
    except (RegistrationError, AwsError, PenstockRpcError) as error:
        call = failed_call(error)
        explained = None
        if call is not None and settings is not None:
            command = "penstock registry serve"
            explained = explain_failure(call, settings, prefix=_PREFIX, command=command, endpoint_flag=_REGISTRY)
        if explained is not None:
            why, is_away = explained
            return _not_looked_at(why), ExitCode.UNREACHABLE if is_away else ExitCode.FAILED
        return _not_looked_at(describe_by_flag(error, arguments, "AWS")), _code_of(error)


def _code_of(error: Exception) -> ExitCode:
    """By what is below the error; a store's file that cannot be used is wrong usage."""
    from penstock.cli._aws import code_of
    from penstock.registration.errors import LeaseStoreError, RegistryUnavailableError

    if isinstance(error, RegistryUnavailableError):
        return ExitCode.UNREACHABLE
    if isinstance(error, LeaseStoreError) and isinstance(error.__cause__, sqlite3.Error | OSError):
        return ExitCode.USAGE
    return code_of(error) or ExitCode.FAILED


def _not_looked_at(error: str) -> list[Finding]:
    sys.stderr.write(f"penstock gc: stream consumers were not looked at: {error}; --store none leaves them out\n")
    return []


@asynccontextmanager
async def _collector(
    arguments: argparse.Namespace, settings: ClientSettings | None
) -> AsyncIterator[Callable[..., Awaitable[list[Orphan]]] | None]:
    """The registry's `collect_garbage`; None without a registry."""
    from penstock.aws import AwsOptions, AwsSession
    from penstock.registration import (
        RemoteConsumerRegistry,
        SqliteLeaseStore,
        default_store_path,
        open_local_registry,
        open_store,
    )

    if settings is not None:
        async with RemoteConsumerRegistry(settings.endpoint, settings.security) as remote:
            yield remote.collect_garbage
        return
    is_local = arguments.store in (None, _LOCAL)
    if arguments.store == _NONE or (is_local and not default_store_path().exists()):
        yield None
        return
    session = AwsSession(
        AwsOptions(
            region=arguments.region,
            endpoint_url=arguments.endpoint_url,
            profile=arguments.profile,
            ca_bundle=arguments.ca_bundle,
        )
    )

    def open_it(*, read_only: bool) -> LeaseStore:
        if is_local:
            namespace = session.endpoint_url("kinesis")
            return SqliteLeaseStore(default_store_path(), namespace=namespace, read_only=read_only)
        return open_store(arguments.store, session, read_only=read_only)

    store = open_it(read_only=True)
    if arguments.remove:
        # Opened for writing it would be made where its name is mistyped, and have nothing left over.
        try:
            await store.list()
        finally:
            await store.close()
        store = open_it(read_only=False)
    registry = open_local_registry(session, store=store)
    try:
        yield registry.collect_garbage
    finally:
        await registry.close()


async def _collected(collect: Callable[..., Awaitable[list[Orphan]]], *, remove: bool) -> list[Finding]:
    """What becomes of the consumers; leases that may be dead are watched until that is known."""
    began, said = time.monotonic(), False
    ended: dict[tuple[str, str], Orphan] = {}
    while True:
        orphans = await collect(dry_run=not remove)
        ended.update({_key(one): one for one in orphans if one.fate.value == "ended"})
        unproved = [one for one in orphans if one.fate.value == "kept" and one.consumer.registration_is_ours]
        waited = time.monotonic() - began
        if not unproved or waited >= _WATCH_SECONDS:
            return [_orphan(one) for one in [*ended.values(), *(one for one in orphans if _key(one) not in ended)]]
        if not said and waited >= _TELL_SECONDS:
            said = True
            sys.stderr.write("penstock gc: watching whether somebody renews the leases, for as long as these live\n")
        await asyncio.sleep(_LOOK_SECONDS)


def _key(orphan: Orphan) -> tuple[str, str]:
    return orphan.consumer.stream_name, orphan.consumer.consumer_name


def _orphan(one: Orphan) -> Finding:
    fate = {"ended": "removed"}.get(one.fate.value, one.fate.value)
    cost = one.consumer.cost_per_hour_usd
    why = one.reason if cost is None else f"{one.reason}; {cost:.3f} USD/h"
    return Finding("consumer", "/".join(_key(one)), None, one.consumer.age_seconds, fate, why)


def _row(one: Finding) -> Row:
    document = {
        "kind": one.kind,
        "what": one.what,
        "bytes": one.nbytes,
        "ageSeconds": round(one.age_seconds, 1),
        "fate": one.fate,
        "why": one.why,
    }
    nbytes = "-" if one.nbytes is None else size(one.nbytes)
    return Row(
        [one.kind, one.what, nbytes, age(one.age_seconds), Cell(one.fate, style=_FATES.get(one.fate, "")), one.why],
        document,
    )
