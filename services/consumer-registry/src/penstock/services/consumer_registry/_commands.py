"""What operators ask of a running registry, as text."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from penstock.registration import Lease, Orphan, OrphanFate, RemoteConsumerRegistry
from penstock.services.consumer_registry._settings import add_client_arguments, client_from_arguments
from penstock.services.consumer_registry._table import age, consumer_table, json_lines, orphan_table

Answer = tuple[str, int]
"""What to print, and the exit code."""


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that call a registry."""
    listing = commands.add_parser("ls", help="list the consumers that a registry knows, and who holds them")
    _add_stream_option(listing)
    listing.add_argument("--no-state", action="store_true", help="do not ask Kinesis for states and costs")
    garbage = commands.add_parser("gc", help="deregister the consumers that are ours and that no lease holds")
    _add_stream_option(garbage)
    garbage.add_argument("--dry-run", action="store_true", help="only show the consumers that no lease holds")
    release = commands.add_parser("release", help="end the lease on a consumer, whoever holds it")
    release.add_argument("--force", action="store_true", help="needed: the holder is told to stop reading")
    adopt = commands.add_parser("adopt", help="make an existing registration ours, to be ended when nobody leases it")
    for command in (release, adopt):
        command.add_argument("stream", help="name of the stream")
        command.add_argument("consumer", help="name of the consumer")
    for command in (listing, garbage, adopt):
        command.add_argument("--json", action="store_true", help="one JSON object a line, with all fields")
    for command in (listing, garbage, release, adopt):
        add_client_arguments(command)


async def answer(arguments: argparse.Namespace) -> Answer:
    """Ask the registry that the arguments name.

    Raises:
        PenstockRpcError: for wrong settings.
        RegistrationError: the registry cannot be asked, or says no.
    """
    endpoint, security = client_from_arguments(arguments)
    async with RemoteConsumerRegistry(endpoint, security) as registry:
        return await _COMMANDS[arguments.command](registry, arguments)


async def _list(registry: RemoteConsumerRegistry, arguments: argparse.Namespace) -> Answer:
    consumers = await registry.list_consumers(arguments.stream, with_state=not arguments.no_state)
    return (json_lines if arguments.json else consumer_table)(consumers), 0


async def _collect(registry: RemoteConsumerRegistry, arguments: argparse.Namespace) -> Answer:
    orphans = await registry.collect_garbage(arguments.stream, dry_run=arguments.dry_run)
    failed = any(orphan.fate is OrphanFate.FAILED for orphan in orphans)
    return (json_lines(orphans) if arguments.json else orphan_table(orphans) + _sum(orphans)), int(failed)


async def _release(registry: RemoteConsumerRegistry, arguments: argparse.Namespace) -> Answer:
    if not arguments.force:
        return "the holder would have to stop reading: say so with --force\n", 2
    return _released(await registry.force_release(arguments.stream, arguments.consumer), arguments.consumer), 0


async def _adopt(registry: RemoteConsumerRegistry, arguments: argparse.Namespace) -> Answer:
    consumer = await registry.adopt(arguments.stream, arguments.consumer)
    return (json_lines if arguments.json else consumer_table)([consumer]), 0


_COMMANDS: Final[Mapping[str, Callable[[RemoteConsumerRegistry, argparse.Namespace], Awaitable[Answer]]]] = (
    MappingProxyType({"ls": _list, "gc": _collect, "release": _release, "adopt": _adopt})
)


def _add_stream_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stream", help="only the consumers of this stream")


def _released(lease: Lease | None, consumer: str) -> str:
    if lease is None:
        return f"nobody holds {consumer}\n"
    left = age(lease.time_to_live_seconds)
    return f"released {consumer}: {lease.job_id} held it by token {lease.fencing_token}, for another {left}\n"


def _sum(orphans: list[Orphan]) -> str:
    """One line for the bill."""
    ours = [orphan for orphan in orphans if orphan.fate is not OrphanFate.KEPT]
    cost = sum(orphan.consumer.cost_per_hour_usd or 0.0 for orphan in orphans)
    return f"{len(orphans)} without a lease, {len(ours)} ours, {cost:.3f} USD/h\n"
