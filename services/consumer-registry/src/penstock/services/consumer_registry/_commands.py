"""What operators ask of a running registry, `ls` of a store that has no service, and the tables of both."""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Final, TextIO

from penstock.aws import AwsConnectionError, AwsOptions, AwsSession
from penstock.registration import (
    Consumer,
    Lease,
    LeaseStore,
    Orphan,
    OrphanFate,
    RemoteConsumerRegistry,
    SqliteLeaseStore,
    default_store_path,
    open_local_registry,
    open_store,
)
from penstock.registration.errors import LeaseStoreError
from penstock.rpc import ClientSettings, RpcOptionError, flags_in
from penstock.services.consumer_registry._serve import KIND
from penstock.terminal import (
    Cell,
    Column,
    ExitCode,
    Row,
    Screen,
    Table,
    add_json_argument,
    age,
    positive_seconds,
    watch,
)

_CONSUMER_COLUMNS: Final = (
    *map(Column, ("STREAM", "CONSUMER", "STATE", "OWNER", "HELD", "TOKEN", "ENDS IN", "REGISTRATION", "AGE")),
    Column("USD/H", justify="right"),
    Column("USD/MONTH", justify="right"),
)
_ORPHAN_COLUMNS: Final = (
    *map(Column, ("STREAM", "CONSUMER", "STATE")),
    Column("USD/H", justify="right"),
    *map(Column, ("FATE", "WHY")),
)
_STATES: Final = {"ACTIVE": "green", "CREATING": "cyan", "DELETING": "yellow"}
_FATES: Final = {"ended": "green", "due": "yellow", "failed": "red"}
MONTH_HOURS: Final = 730
"""As AWS's own price lists count."""


def consumer_table(consumers: Iterable[Consumer]) -> Table:
    """One row per consumer. What is not known is `?`, what is not, `-`."""
    consumers = list(consumers)
    rows = [_consumer_row(consumer, _stream_of(consumer, consumers)) for consumer in consumers]
    return Table(columns=_CONSUMER_COLUMNS, rows=rows, empty="no consumers")


def orphan_table(orphans: Iterable[Orphan]) -> Table:
    """One row per orphan, and what becomes of it."""
    orphans = list(orphans)
    consumers = [orphan.consumer for orphan in orphans]
    rows = [_orphan_row(orphan, _stream_of(orphan.consumer, consumers)) for orphan in orphans]
    return Table(columns=_ORPHAN_COLUMNS, rows=rows, empty="no consumer without a lease")


def _stream_of(consumer: Consumer, consumers: Iterable[Consumer]) -> str:
    """The stream's name; its ARN where another stream of the table has the same name."""
    arns = {one.stream_arn for one in consumers if one.stream_name == consumer.stream_name}
    return consumer.stream_name if len(arns) == 1 else consumer.stream_arn


def _consumer_row(consumer: Consumer, stream: str) -> Row:
    lease = consumer.lease
    held: tuple[Cell | str, ...] = (Cell("-", style="dim"),) * 4
    if lease is not None:
        held = (lease.job_id, age(consumer.held_seconds), str(lease.fencing_token), age(lease.time_to_live_seconds))
    registration = "ours" if consumer.registration_is_ours else "not ours"
    cells: list[Cell | str] = [
        stream,
        consumer.consumer_name,
        _state(consumer),
        *held,
        registration,
        age(consumer.age_seconds),
        _cost(consumer, 1, 3),
        # AWS charges for a consumer while it is registered, also if no job reads by it.
        _cost(consumer, MONTH_HOURS, 2),
    ]
    return Row(cells, {**asdict(consumer), "cost_per_month_usd": _per_month(consumer)})


def _orphan_row(orphan: Orphan, stream: str) -> Row:
    consumer = orphan.consumer
    fate = Cell(orphan.fate.value, style=_FATES.get(orphan.fate.value, ""))
    cells: list[Cell | str] = [
        stream,
        consumer.consumer_name,
        _state(consumer),
        _cost(consumer, 1, 3),
        fate,
        orphan.reason,
    ]
    return Row(cells, asdict(orphan))


def _state(consumer: Consumer) -> Cell:
    if consumer.state is None:
        return Cell("?", style="dim")
    return Cell(consumer.state.value, style=_STATES.get(consumer.state.value, ""))


def _cost(consumer: Consumer, hours: int, digits: int) -> Cell:
    cost = consumer.cost_per_hour_usd
    return Cell("?", style="dim") if cost is None else Cell(f"{cost * hours:.{digits}f}")


def _per_month(consumer: Consumer) -> float | None:
    return None if consumer.cost_per_hour_usd is None else round(consumer.cost_per_hour_usd * MONTH_HOURS, 2)


LOCAL: Final = "local"
"""The file of jobs that name none."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that call a registry."""
    listing = commands.add_parser("ls", help="list the consumers that a registry knows, and who holds them")
    _add_stream_option(listing)
    listing.add_argument("--no-state", action="store_true", help="do not ask Kinesis for states and costs")
    listing.add_argument("--watch", type=positive_seconds, metavar="SECONDS", help="look again, until interrupted")
    listing.add_argument(
        "--registry-store",
        metavar="URL",
        help="instead of a service: sqlite:///PATH or dynamodb://TABLE of jobs that keep their leases themselves, or "
        "local for the file of those that name none; only read",
    )
    garbage = commands.add_parser("gc", help="deregister the consumers that are ours and that no lease holds")
    _add_stream_option(garbage)
    garbage.add_argument("--dry-run", action="store_true", help="only show the consumers that no lease holds")
    release = commands.add_parser("release", help="end the lease on a consumer, whoever holds it")
    release.add_argument("--force", action="store_true", help="needed: the holder has to stop reading")
    adopt = commands.add_parser("adopt", help="make an existing registration ours, to be ended when no job leases it")
    for command in (release, adopt):
        command.add_argument("stream", help="name of the stream, or its ARN")
        command.add_argument("consumer", help="name of the consumer")
    for command in (listing, garbage, release, adopt):
        add_json_argument(command)
    for command in (listing, garbage, release, adopt):
        ClientSettings.add_arguments(command, KIND.prefix)
    AwsOptions.add_arguments(listing, KIND.prefix)


def contradiction(arguments: argparse.Namespace, words: Sequence[str]) -> str | None:
    """Why flags of `ls` do not go together; None if they do. What variables say contradicts no flag.

    Args:
        arguments: what the parser made of the words.
        words: the command line.
    """
    if arguments.command != "ls":
        return None
    service = flags_in(words, ClientSettings.add_arguments, KIND.prefix)
    store = flags_in(words, AwsOptions.add_arguments, KIND.prefix)
    if arguments.registry_store and service:
        return f"{service[0]} and --registry-store exclude each other: it is looked at without a service"
    if not arguments.registry_store and store:
        return f"{store[0]} needs --registry-store: a service asks Kinesis by settings of its own"
    return None


async def answer(arguments: argparse.Namespace, settings: ClientSettings, out: TextIO) -> int:
    """Ask the registry of the settings, write what it says, and give the exit code.

    Raises:
        PenstockRpcError: for wrong arguments.
        RegistrationError: the registry cannot be asked, or says no.
    """
    screen = Screen(out, as_json=getattr(arguments, "json", False))
    async with RemoteConsumerRegistry(settings.endpoint, settings.security) as registry:
        return await _COMMANDS[arguments.command](registry, arguments, screen)


async def _list(registry: RemoteConsumerRegistry, arguments: argparse.Namespace, screen: Screen) -> int:
    async def look() -> list[Table]:
        return [consumer_table(await registry.list_consumers(arguments.stream, with_state=not arguments.no_state))]

    await watch(screen, look, arguments.watch)
    return ExitCode.OK


async def _collect(registry: RemoteConsumerRegistry, arguments: argparse.Namespace, screen: Screen) -> int:
    orphans = await registry.collect_garbage(arguments.stream, dry_run=arguments.dry_run)
    screen.show(orphan_table(orphans))
    screen.say(_sum(orphans))
    return ExitCode.FAILED if any(orphan.fate is OrphanFate.FAILED for orphan in orphans) else ExitCode.OK


async def _release(registry: RemoteConsumerRegistry, arguments: argparse.Namespace, screen: Screen) -> int:
    if not arguments.force:
        raise RpcOptionError("force", "is missing: the holder would have to stop reading; say so with it")
    lease = await registry.force_release(arguments.stream, arguments.consumer)
    document = {"consumer": arguments.consumer, "released": None if lease is None else asdict(lease)}
    screen.show_row(Row([_released(lease, arguments.consumer)], document))
    return ExitCode.OK


async def _adopt(registry: RemoteConsumerRegistry, arguments: argparse.Namespace, screen: Screen) -> int:
    screen.show(consumer_table([await registry.adopt(arguments.stream, arguments.consumer)]))
    return ExitCode.OK


_COMMANDS: Final[Mapping[str, Callable[[RemoteConsumerRegistry, argparse.Namespace, Screen], Awaitable[int]]]] = (
    MappingProxyType({"ls": _list, "gc": _collect, "release": _release, "adopt": _adopt})
)


def _add_stream_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stream", help="only the consumers of this stream")


def _released(lease: Lease | None, consumer: str) -> str:
    if lease is None:
        return f"no job holds {consumer}"
    left = age(lease.time_to_live_seconds)
    return f"released {consumer}: {lease.job_id} held it by token {lease.fencing_token}, for another {left}"


def _sum(orphans: list[Orphan]) -> str:
    """One line for the bill."""
    ours = [orphan for orphan in orphans if orphan.fate is not OrphanFate.KEPT]
    cost = sum(orphan.consumer.cost_per_hour_usd or 0.0 for orphan in orphans)
    return f"{len(orphans)} without a lease, {len(ours)} ours, {cost:.3f} USD/h"


async def look_into_store(arguments: argparse.Namespace, out: TextIO) -> int:
    """Write a row per consumer of the store that `--registry-store` names, and change nothing in it.

    Raises:
        AwsOptionError, RegistrationOptionError: a setting is wrong; the error names it.
        RegistrationError: the store cannot be read, or Kinesis not be asked for states.
    """
    session = AwsSession(AwsOptions.from_arguments(arguments))
    registry = open_local_registry(session, store=_store(arguments.registry_store, session))
    screen = Screen(out, as_json=arguments.json)

    async def look() -> list[Table]:
        table = consumer_table(await registry.list_consumers(arguments.stream, with_state=not arguments.no_state))
        return [replace(table, empty=f"no consumers of {session.endpoint_url('kinesis')} in this store")]

    try:
        await watch(screen, look, arguments.watch)
    finally:
        await registry.close()
    return ExitCode.OK


def code_of(error: LeaseStoreError) -> ExitCode:
    """By what is below the error: a file that cannot be, no answer, or one that says no."""
    cause = error.__cause__
    if isinstance(cause, AwsConnectionError):
        return ExitCode.UNREACHABLE
    return ExitCode.USAGE if isinstance(cause, (sqlite3.Error, OSError)) else ExitCode.FAILED


def _store(url: str, session: AwsSession) -> LeaseStore:
    if url == LOCAL:
        return SqliteLeaseStore(default_store_path(), namespace=session.endpoint_url("kinesis"), read_only=True)
    return open_store(url, session, read_only=True)
