"""What operators do with a running service, and how it reads."""

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from registry_process import Command, ConsumerNames, Eventually, MakeRequest, Serve

from penstock.emulator.testing import RunningEmulator
from penstock.registration import Consumer, ConsumerState, Lease, Orphan, OrphanFate, open_registry
from penstock.registration.errors import LeaseLostError
from penstock.services.consumer_registry._commands import consumer_table, orphan_table
from penstock.terminal import Screen, Table


@pytest.fixture
def theirs(emulator: RunningEmulator, eventually: Eventually, consumer_names: ConsumerNames) -> Iterator[str]:
    """A consumer that somebody else registered, gone after the test."""
    client = emulator.client()
    arn = client.describe_stream_summary(StreamName="flights")["StreamDescriptionSummary"]["StreamARN"]
    consumer_arn = client.register_stream_consumer(StreamARN=arn, ConsumerName="theirs")["Consumer"]["ConsumerARN"]
    yield "theirs"
    if "theirs" in consumer_names():
        client.deregister_stream_consumer(ConsumerARN=consumer_arn)
        eventually(lambda: "theirs" not in consumer_names())


def test_ls_prints_state_owner_age_token_and_cost(serve: Serve, request_lease: MakeRequest, command: Command) -> None:
    """As lines, or as JSON lines; without Kinesis on request."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lease = registry.acquire(request_lease("job-17"))
        listing = command("ls", "--endpoint", service.address)
        (row,) = (line.split("\t") for line in listing.stdout.splitlines())
        assert row[:4] == ["flights", "delays", "ACTIVE", "job-17"]
        assert row[5] == str(lease.fencing_token)
        assert row[-2:] == ["0.015", "10.95"]
        as_json = json.loads(command("ls", "--json", PENSTOCK_REGISTRY_ENDPOINT=service.address).stdout)
        assert as_json["lease"]["job_id"] == "job-17"
        assert (as_json["state"], as_json["cost_per_hour_usd"]) == ("ACTIVE", 0.015)
        assert as_json["cost_per_month_usd"] == 10.95
        without = command("ls", "--no-state", "--endpoint", service.address).stdout
        assert without.split("\t")[2] == "?"
        registry.release(lease)


def test_gc_shows_orphans_and_ends_ours(
    serve: Serve, request_lease: MakeRequest, command: Command, consumer_names: ConsumerNames, theirs: str
) -> None:
    """A dry run first; what is not ours is ended once it is adopted."""
    # The grace period keeps the sweeper from being faster.
    with serve("--consumer-shard-hour-usd", "0.02") as service, open_registry(endpoint=service.address) as registry:
        registry.release(registry.acquire(request_lease(consumer_name="orphan")))
        held = registry.acquire(request_lease(consumer_name="held"))
        dry = command("gc", "--dry-run", "--endpoint", service.address)
        assert [line.split()[1:5] for line in dry.stdout.splitlines()] == [
            ["orphan", "ACTIVE", "0.020", "due"],
            ["theirs", "ACTIVE", "0.020", "kept"],
        ]
        assert set(consumer_names()) == {"held", "orphan", "theirs"}
        done = command("gc", "--json", "--endpoint", service.address)
        fates = {each["consumer"]["consumer_name"]: each["fate"] for each in map(json.loads, done.stdout.splitlines())}
        assert fates == {"orphan": "ended", "theirs": "kept"}
        assert set(consumer_names()) == {"held", "theirs"}
        adopted = command("adopt", "flights", "theirs", "--endpoint", service.address)
        assert adopted.stdout.split()[1:4] == ["theirs", "ACTIVE", "-"]
        command("gc", "--stream", "flights", "--endpoint", service.address)
        assert consumer_names() == ["held"]
        registry.release(held)
        command("gc", "--endpoint", service.address)
        assert consumer_names() == []


def test_a_lease_is_released_by_force_and_its_holder_stops(
    serve: Serve, request_lease: MakeRequest, command: Command, eventually: Eventually
) -> None:
    """By its next heartbeat, through `on_lost`; without --force nothing happens."""
    with serve("--grace-seconds", "0") as service, open_registry(endpoint=service.address) as registry:
        lost: list[LeaseLostError] = []
        registry.keep(registry.acquire(request_lease("stuck", time_to_live=timedelta(seconds=3))), lost.append)
        refused = command("release", "flights", "delays", "--endpoint", service.address)
        assert (refused.returncode, "--force" in refused.stderr, refused.stdout) == (2, True, "")
        released = command("release", "flights", "delays", "--force", "--endpoint", service.address)
        assert (released.returncode, "stuck held it by token" in released.stdout) == (0, True)
        eventually(lambda: lost)
        again = command("release", "flights", "delays", "--force", "--endpoint", service.address)
        assert again.stdout == "no job holds delays\n"


@pytest.mark.parametrize(
    "arguments", [("adopt", "flights", "unheard-of"), ("release", "flights", "unheard-of", "--force")]
)
def test_what_is_not_there_is_said(serve: Serve, command: Command, arguments: tuple[str, ...]) -> None:
    """One line, exit code 1."""
    with serve() as service:
        ended = command(*arguments, "--endpoint", service.address)
    assert ended.returncode == 1
    assert ended.stderr.splitlines() == ["penstock registry: stream 'flights' has no consumer 'unheard-of'"]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def drawn(table: Table) -> list[str]:
    """Lines of the table on a wide terminal, without the one below the headings."""
    out = Terminal()
    Screen(out, environ={"TERM": "dumb", "COLUMNS": "160"}).show(table)
    return [line.rstrip() for line in out.getvalue().splitlines() if not line.startswith("─")]


def consumer(**fields: Any) -> Consumer:
    fields = {
        "stream_name": "flights",
        "consumer_name": "delays",
        "consumer_arn": "arn",
        "registration_is_ours": False,
        "lease": None,
        "age_seconds": 5.0,
        **fields,
    }
    return Consumer(**fields)


def test_columns_stay_aligned() -> None:
    """What is not is a dash, what is not known is a question mark."""
    lease = Lease(
        stream_name="s",
        consumer_name="c",
        job_id="a-long-job-id",
        consumer_arn="arn",
        fencing_token=12,
        time_to_live_seconds=30.0,
        registration_is_ours=True,
    )
    held = consumer(
        stream_name="s",
        consumer_name="c",
        registration_is_ours=True,
        lease=lease,
        age_seconds=90_000.0,
        held_seconds=3700.0,
        state=ConsumerState.ACTIVE,
        cost_per_hour_usd=0.06,
    )
    assert drawn(consumer_table([consumer(), held])) == [
        "STREAM   CONSUMER  STATE   OWNER          HELD   TOKEN  ENDS IN  REGISTRATION  AGE    USD/H  USD/MONTH",
        "flights  delays    ?       -              -      -      -        not ours      5s         ?          ?",
        "s        c         ACTIVE  a-long-job-id  1h 1m  12     30s      ours          1d 1h  0.060      43.80",
    ]


def test_streams_of_one_name_are_distinguished_by_their_arns() -> None:
    """Of two accounts; any other goes by its name."""
    arns = [f"arn:aws:kinesis:eu-west-1:{account}:stream/flights" for account in ("123456789012", "999999999999")]
    found = [consumer(stream_name="flights", stream_arn=arn) for arn in arns]
    found.append(consumer(stream_name="weather", stream_arn="arn:weather"))
    assert [line.split()[0] for line in drawn(consumer_table(found))[1:]] == [*arns, "weather"]


def test_the_readme_shows_the_tables_as_they_are() -> None:
    """Headings, columns and the sum."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    headings = [[column.heading for column in table([]).columns] for table in (consumer_table, orphan_table)]
    assert " ".join(headings[0]).split() == next(line for line in readme.splitlines() if "OWNER" in line).split()
    assert " ".join(headings[1]).split() == next(line for line in readme.splitlines() if "FATE" in line).split()
    assert "2 without a lease, 1 ours, 0.120 USD/h" in readme
    for command in ("ls", "gc", "release", "adopt"):
        assert f"| `{command} " in readme


def test_orphans_say_why() -> None:
    """What becomes of each, and the reason."""
    orphan = Orphan(
        consumer=consumer(state=ConsumerState.ACTIVE, cost_per_hour_usd=0.06), fate=OrphanFate.KEPT, reason="not ours"
    )
    assert drawn(orphan_table([orphan])) == [
        "STREAM   CONSUMER  STATE   USD/H  FATE  WHY",
        "flights  delays    ACTIVE  0.060  kept  not ours",
    ]
