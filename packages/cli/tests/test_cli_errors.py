"""`penstock errors`: what an error means and what cures it, by its class."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.cli import main


def test_an_error_is_explained_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    """As a message gives it: when it is raised, what to do with the options by name, and its fields."""
    assert main(["errors", "DataLossError"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("penstock.efo_consumer.errors.DataLossError\n\nRecords expired before they were read")
    assert "\n\nWhat to do: Read sooner" in text
    assert "set `failOnDataLoss` to false" in text
    assert "    shard_id: the shard.\n" in text
    assert text.endswith("It is a ShardReaderError.\n")


@pytest.mark.parametrize("name", ["penstock.aws.errors.AwsServiceError", "awsserviceerror"])
def test_a_name_is_found_as_a_traceback_has_it_and_in_any_letter_case(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["errors", name]) == 0
    assert capsys.readouterr().out.startswith("penstock.aws.errors.AwsServiceError\n")


def test_errors_of_one_name_are_all_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Several packages have one, each with a cure of its own."""
    assert main(["errors", "LocationMismatchError", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["module"] for one in found} >= {"penstock.async_sink.errors", "penstock.efo_consumer.errors"}
    assert len({one["cure"] for one in found}) == len(found)


def test_all_errors_are_listed_behind_what_they_are_special_cases_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(listed) > 100
    before: set[tuple[str, str | None]] = set()
    for one in listed:
        assert one["base"] is None or (one["module"], one["base"]) in before
        before.add((one["module"], one["error"]))


def test_a_mistyped_name_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "DatalosError"]) == 1
    assert capsys.readouterr().err.endswith("an error 'DatalosError': did you mean DataLossError?\n")
    assert main(["errors", "qqq"]) == 1
    assert capsys.readouterr().err.endswith("penstock errors lists all\n")


def test_errors_are_explained_where_their_packages_cannot_be_imported() -> None:
    """On a machine without Spark and gRPC, say: nothing is imported but the command line."""
    script = (
        "import sys\nfrom penstock.cli import main\ncode = main(['errors', 'DataLossError'])\n"
        "heavy = {'pyspark', 'grpc', 'pyarrow', 'botocore', 'penstock.efo_consumer'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
