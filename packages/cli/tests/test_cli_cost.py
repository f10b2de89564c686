"""`penstock cost`: bills that can be checked by hand, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from penstock.cli._cost import Load, bill, main, read_prices

PAGE = Path(__file__).parents[3] / "docs" / "pages" / "operations" / "costs.md"


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main([*arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_provisioned_stream_is_billed_by_shards_units_and_consumers() -> None:
    """1,000 records of 30 KiB a second: 30 MiB/s need 30 shards, each record is two units."""
    load = Load(records=1_024, record_bytes=30 * 1_024, consumers=2, retention_hours=48)
    found: dict[str, object] = {one.what: (one.quantity, one.usd) for one in bill(load, read_prices("us-east-1"))}
    gb = 30 * 3_600 / 1_024
    assert found == {
        "open shards": (30, pytest.approx(0.45)),
        "written": (pytest.approx(7.3728), pytest.approx(7.3728 * 0.014)),
        "consumers": (60, pytest.approx(0.9)),
        "read by consumers": (pytest.approx(2 * gb), pytest.approx(2 * gb * 0.013)),
        "kept for up to 7 days": (30, pytest.approx(0.6)),
    }


def test_an_on_demand_stream_is_billed_by_gigabytes_with_records_rounded_up() -> None:
    """2^20 records an hour of 100 bytes are written as a GB, read as what they are."""
    load = Load(records=2**20 / 3_600, record_bytes=100, on_demand=True, consumers=1, polling=2, retention_hours=24 * 9)
    found = {one.what: one.quantity for one in bill(load, read_prices("us-east-1"))}
    gb = 100 / 1_024
    assert found == {
        "the stream, on demand": 1,
        "written": pytest.approx(1),
        "read by polling": pytest.approx(2 * gb),
        "read by consumers": pytest.approx(gb),
        "kept for up to 7 days": pytest.approx(gb * 144),
        "kept for longer": pytest.approx(gb * 48),
    }


def test_aggregates_need_the_shards_of_their_bytes_alone() -> None:
    small = Load(records=20_000, record_bytes=100)
    assert small.open_shards == 20
    together = Load(records=20_000, record_bytes=100, aggregate_bytes=51_200)
    assert together.open_shards == 3
    records, size = together.stored
    assert records == pytest.approx(20_000 / 473)
    assert 51_000 < size <= 51_200
    assert Load(record_bytes=100_000, aggregate_bytes=51_200).stored[0] == 100


def test_readers_that_poll_share_what_a_shard_gives() -> None:
    assert Load(records=1_024, record_bytes=1_024, polling=2).open_shards == 2  # of 1,000 records a second
    assert Load(records=1_024, record_bytes=10_240, polling=2).open_shards == 10
    assert Load(records=1_024, record_bytes=10_240, polling=6).open_shards == 30
    assert Load(records=1_024, record_bytes=10_240, polling=6, shards=4).open_shards == 4


def test_large_quantities_are_whole_and_in_groups_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    """Never as a power of ten; small ones have four digits."""
    assert main(["--records", "0", "--shards", "12345", "--consumers", "3", "--leases", "2"]) == 0
    quantities = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert quantities[:3] == ["12,345 shard-hours", "37,035 consumer-shard-hours", "0.00072 million writes"]


def test_an_idle_stream_costs_its_shards_and_consumers(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "--records", "0", "--shards", "10", "--consumers", "1")
    assert [one["what"] for one in found] == ["open shards", "consumers", "all"]
    assert found[-1]["usdPerMonth"] == pytest.approx(2 * 10 * 730 * 0.015)


def test_ways_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    found = lines(capsys, "--records", "5000", "--record-bytes", "200", "--polling", "1", "--compare")
    ways = {(one["mode"], one["readers"], one["aggregateBytes"]): one["usdPerHour"] for one in found}
    assert len(ways) == 8
    assert min(ways, key=ways.__getitem__) == ("provisioned", "polling", 51_200)
    assert max(ways, key=ways.__getitem__) == ("on-demand", "efo", None)


def test_prices_of_a_file_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ours = (Path(__file__).parents[1] / "src" / "penstock" / "cli" / "prices.toml").read_text()
    file = tmp_path / "prices.toml"
    file.write_text(re.sub("shard_hour = 0.015 ", "shard_hour = 0.5 ", ours.replace("us-east-1", "eu-west-1"), count=1))
    (first, *_) = lines(capsys, "--region", "eu-west-1", "--prices", str(file))
    assert (first["what"], first["priceUsd"]) == ("open shards", 0.5)
    assert main(["--region", "eu-west-1"]) == 2
    said = "penstock cost: our prices have no table [eu-west-1], only us-east-1: give --prices FILE\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("shard_hour = 0.015 ", "shard_hour = -1 "), "shard_hour in [us-east-1] of FILE is -1, and has to be a price"),
        (("shard_hour = 0.015 ", "shard_hour = nan "), "shard_hour in [us-east-1] of FILE is nan"),
        (("shard_hour = 0.015 ", f"shard_hour = {10**400} "), f"shard_hour in [us-east-1] of FILE is {10**400}"),
        (
            ("shard_hour = 0.015 ", "shard_price = 1 "),
            "[us-east-1] of FILE lacks, or does not know: shard_hour, shard_price",
        ),
        (("[us-east-1]", "[us-east-1"), "FILE cannot be read: "),
    ],
)
def test_wrong_prices_are_named(
    change: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = (Path(__file__).parents[1] / "src" / "penstock" / "cli" / "prices.toml").read_text()
    file = tmp_path / "prices.toml"
    file.write_text(ours.replace(*change, 1))
    assert main(["--prices", str(file)]) == 2
    assert capsys.readouterr().err.replace(str(file), "FILE").startswith(f"penstock cost: {said}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--records", "-1"],
        ["--records", "nan"],
        ["--consumers", "-1"],
        ["--retention-hours", "23"],
        ["--shards", "2", "--on-demand"],
        ["--shards", "2", "--compare"],
        ["--record-bytes", "10485761"],
        ["--aggregate-bytes", "10485761"],
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


def test_the_page_shows_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Each example of it, to the letter."""
    blocks = re.findall(r"```console\n\$ penstock cost (.*)\n((?:.+\n)+?)```", PAGE.read_text())
    assert len(blocks) == 3
    for arguments, shown in blocks:
        assert main(shlex.split(arguments)) == 0
        assert capsys.readouterr().out == shown, arguments
