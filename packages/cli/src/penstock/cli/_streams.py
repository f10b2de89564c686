"""`penstock streams`: which there are, what is in them, new ones, and how many shards they should have."""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from penstock.cli._aws import add_aws_arguments, aws_options, missing, run_calls
from penstock.terminal import (
    Cell,
    Column,
    ExitCode,
    Form,
    Parser,
    Row,
    Screen,
    Table,
    add_json_argument,
    positive_count,
)

if TYPE_CHECKING:
    from penstock.aws import JsonClient
    from penstock.efo_consumer import Shard

PROG: Final = "penstock streams"
_KEYS: Final = 2**128
_LOOK_SECONDS: Final = 1.0
_STYLES: Final = {"ACTIVE": "green", "DELETING": "red"}
_STREAMS: Final = (Column("STREAM"), Column("STATUS"), Column("MODE"), Column("CREATED"))
_FACTS: Final = (Column("WHAT"), Column("VALUE"))
_SHARDS: Final = (
    Column("SHARD"),
    Column("STATE"),
    Column("KEYS", justify="right"),
    Column("PARENTS"),
    Column("FIRST HASH KEY"),
)


def main(argv: Sequence[str]) -> int:
    """List, describe, create or reshard streams. Returns the exit code."""
    parser = Parser(prog=PROG, description="List, describe, create and reshard the streams of an account and region.")
    commands = parser.add_subparsers(dest="command", required=True)
    ls = commands.add_parser("ls", help="list streams")
    ls.add_argument(
        "pattern", nargs="?", default="*", metavar="GLOB", help="only streams with such names, for example 'flights-*'"
    )
    describe = commands.add_parser("describe", help="show a stream, its shards and its consumers")
    describe.add_argument("stream", metavar="STREAM", help="name of the stream")
    describe.add_argument("--all", action="store_true", help="include closed shards")
    create = commands.add_parser(
        "create",
        help="create a stream",
        description="Create a stream, and wait until it is active. AWS bills the stream from then on.",
        epilog="exit codes: 0 created, 1 refused, for example because the name is taken, 2 wrong usage, "
        "3 Kinesis cannot be reached",
    )
    create.add_argument("stream", metavar="STREAM", help="name of the stream")
    capacity = create.add_mutually_exclusive_group(required=True)
    capacity.add_argument("--shards", type=positive_count, metavar="N", help="number of open shards")
    capacity.add_argument("--on-demand", action="store_true", help="Kinesis sets the number of shards")
    reshard = commands.add_parser(
        "reshard",
        help="change the number of shards",
        description="Change the number of open shards with UpdateShardCount, in as many calls as its limits require "
        "(each call can double or halve the number). Running readers follow, and the records of a key keep their "
        "order. AWS bills each open shard by the hour.",
        epilog="exit codes: 0 done or shown, 1 refused or not confirmed, 2 wrong usage, 3 Kinesis cannot be reached",
    )
    reshard.add_argument("stream", metavar="STREAM", help="name of the stream")
    reshard.add_argument(
        "--shards", type=positive_count, required=True, metavar="N", help="the wanted number of open shards"
    )
    asks = reshard.add_mutually_exclusive_group()
    asks.add_argument("--dry-run", action="store_true", help="only show what would be done")
    asks.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    for command in (ls, describe, create, reshard):
        add_json_argument(command)
        add_aws_arguments(command)
    arguments = parser.parse_args(argv)
    try:
        import penstock.efo_consumer  # noqa: F401  # it lists shards
    except ImportError as error:
        return missing(PROG, error)
    run = {"ls": _ls, "describe": _describe, "create": _create, "reshard": _reshard}[arguments.command]

    async def calls() -> int:
        from penstock.aws import AwsSession, JsonClient

        async with JsonClient(AwsSession(aws_options(arguments))) as client:
            return await run(client, arguments, Screen(sys.stdout, as_json=arguments.json))

    return run_calls(f"{PROG} {arguments.command}", arguments, calls)


async def _call(client: JsonClient, operation: str, **parameters: Any) -> dict[str, Any]:
    from penstock.aws import BackoffPolicy, retry

    return await retry(lambda: client.call(operation, parameters), BackoffPolicy())


async def _ls(client: JsonClient, arguments: argparse.Namespace, screen: Screen) -> int:
    found: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:
        page = await _call(client, "ListStreams", Limit=1000, **token)
        found += page["StreamSummaries"]
        if not page["HasMoreStreams"]:
            break
        token = {"NextToken": page["NextToken"]}
    rows = []
    for one in found:
        if not fnmatch.fnmatchcase(one["StreamName"], arguments.pattern):
            continue
        mode, created = _mode(one), _time(one.get("StreamCreationTimestamp"))
        document = {
            "streamName": one["StreamName"],
            "streamArn": one["StreamARN"],
            "status": one["StreamStatus"],
            "mode": mode,
            "created": created,
        }
        rows.append(Row([one["StreamName"], _status(one["StreamStatus"]), mode, created or "-"], document))
    screen.show(Table(columns=_STREAMS, rows=rows, empty="no such streams in this account and region"))
    return ExitCode.OK


async def _describe(client: JsonClient, arguments: argparse.Namespace, screen: Screen) -> int:
    from penstock.efo_consumer import list_shards

    name = arguments.stream
    summary = (await _call(client, "DescribeStreamSummary", StreamName=name))["StreamDescriptionSummary"]
    shards = await list_shards(client, name)
    consumers: list[dict[str, Any]] = []
    token: dict[str, str] = {}
    while True:
        page = await _call(client, "ListStreamConsumers", StreamARN=summary["StreamARN"], **token)
        consumers += page["Consumers"]
        if not page.get("NextToken"):
            break
        token = {"NextToken": page["NextToken"]}
    facts: dict[str, Any] = {
        "streamName": name,
        "streamArn": summary["StreamARN"],
        "status": summary["StreamStatus"],
        "mode": _mode(summary),
        "created": _time(summary.get("StreamCreationTimestamp")),
        "openShards": summary["OpenShardCount"],
        "retentionHours": summary["RetentionPeriodHours"],
        "encryption": summary.get("EncryptionType", "NONE"),
        "consumers": [one["ConsumerName"] for one in consumers],
    }
    shown = [one for one in shards if arguments.all or one.is_open]
    if screen.form is Form.JSON:
        # One object: what it says of the shards is of the same moment.
        document = facts | {"shards": [_shard_document(one) for one in shown]}
        screen.show(Table(columns=_FACTS, rows=[Row([], document)]))
        return ExitCode.OK
    values = {what: ", ".join(value) if isinstance(value, list) else str(value) for what, value in facts.items()}
    screen.show(
        Table(columns=_FACTS, rows=[Row([what, value or "none"]) for what, value in values.items()]),
        Table(columns=_SHARDS, rows=[_shard_row(one) for one in shown], title="shards"),
    )
    closed = len(shards) - len(shown)
    if closed:
        screen.say(f"and {closed} closed shards that still hold records: --all", "dim")
    return ExitCode.OK


async def _create(client: JsonClient, arguments: argparse.Namespace, screen: Screen) -> int:
    name = arguments.stream
    capacity: dict[str, Any] = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}} if arguments.on_demand else {}
    if arguments.shards:
        capacity["ShardCount"] = arguments.shards
    await _call(client, "CreateStream", StreamName=name, **capacity)
    last = None
    while True:
        summary = (await _call(client, "DescribeStreamSummary", StreamName=name))["StreamDescriptionSummary"]
        now = (summary["StreamStatus"], summary["OpenShardCount"])
        if now != last:
            document = {"streamName": name, "mode": _mode(summary), "openShards": now[1], "state": now[0].lower()}
            screen.show_row(Row([name, f"{now[1]} shards", now[0].lower()], document))
            screen.flush()
        if now[0] != "CREATING":
            return ExitCode.OK if now[0] == "ACTIVE" else ExitCode.FAILED
        last = now
        await asyncio.sleep(_LOOK_SECONDS)


async def _reshard(client: JsonClient, arguments: argparse.Namespace, screen: Screen) -> int:
    name, wanted = arguments.stream, arguments.shards
    summary = (await _call(client, "DescribeStreamSummary", StreamName=name))["StreamDescriptionSummary"]
    if _mode(summary) == "ON_DEMAND":
        sys.stderr.write(f"{PROG} reshard: {name} is on demand: Kinesis sets the number of its shards\n")
        return ExitCode.FAILED
    count = summary["OpenShardCount"]
    steps = shard_steps(count, wanted)

    def report(state: str, shards: int) -> None:
        document = {"streamName": name, "openShards": shards, "targetShards": wanted, "state": state}
        screen.show_row(Row([name, f"{shards} of {wanted} shards", state], document))
        screen.flush()

    if not steps:
        report("nothing to do", count)
        return ExitCode.OK
    plan = " -> ".join(map(str, (count, *steps)))
    report(f"planned: {plan} open shards, {len(steps)} of the 10 changes a day", count)
    if arguments.dry_run:
        return ExitCode.OK
    if not arguments.yes and not await _confirmed(f"{name}: {plan} open shards"):
        return ExitCode.FAILED
    for step in steps:
        await _call(client, "UpdateShardCount", StreamName=name, TargetShardCount=step, ScalingType="UNIFORM_SCALING")
        last = None
        while True:
            summary = (await _call(client, "DescribeStreamSummary", StreamName=name))["StreamDescriptionSummary"]
            now = (summary["StreamStatus"], summary["OpenShardCount"])
            if now != last:
                report(now[0].lower(), now[1])
            if now[0] == "ACTIVE":
                break
            last = now
            await asyncio.sleep(_LOOK_SECONDS)
        if now[1] != step:
            # Somebody else changes it too.
            sys.stderr.write(f"{PROG} reshard: {name} has {now[1]} open shards after the change to {step}\n")
            return ExitCode.FAILED
    return ExitCode.OK


def shard_steps(count: int, wanted: int) -> list[int]:
    """The counts to ask for, one after the other: a call may double the open shards, or halve them, at most."""
    steps: list[int] = []
    while count != wanted:
        count = min(wanted, count * 2) if wanted > count else max(wanted, (count + 1) // 2)
        steps.append(count)
    return steps


async def _confirmed(what: str) -> bool:
    if not sys.stdin.isatty():
        sys.stderr.write(f"{PROG} reshard: no terminal to ask for confirmation: give --yes, or look with --dry-run\n")
        return False
    sys.stderr.write(f"{what}: continue? [y/N] ")
    sys.stderr.flush()
    answer = await asyncio.to_thread(sys.stdin.readline)
    return answer.strip().lower() in ("y", "yes")


def _shard_row(shard: Shard) -> Row:
    share = (int(shard.ending_hash_key) - int(shard.starting_hash_key) + 1) / _KEYS
    state = Cell("open", style="green") if shard.is_open else Cell("closed", style="dim")
    keys = Cell(f"{share:.1%}", share=share if shard.is_open else None)
    parents = ", ".join(shard.parent_shard_ids) or "-"
    return Row([shard.shard_id, state, keys, parents, shard.starting_hash_key])


def _shard_document(shard: Shard) -> dict[str, Any]:
    return {
        "shardId": shard.shard_id,
        "isOpen": shard.is_open,
        "parents": list(shard.parent_shard_ids),
        "startingHashKey": shard.starting_hash_key,
        "endingHashKey": shard.ending_hash_key,
        "startingSequenceNumber": shard.starting_sequence_number,
        "endingSequenceNumber": shard.ending_sequence_number,
    }


def _mode(summary: dict[str, Any]) -> str:
    return str(summary.get("StreamModeDetails", {}).get("StreamMode", "PROVISIONED"))


def _status(status: str) -> Cell:
    return Cell(status, style=_STYLES.get(status, "yellow"))


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
