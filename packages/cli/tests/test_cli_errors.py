"""`penstock errors`: what an error means and what cures it, by its class."""

from __future__ import annotations

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


def test_a_mistyped_name_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["errors", "DatalosError"]) == 1
    assert capsys.readouterr().err.endswith("an error 'DatalosError': did you mean DataLossError?\n")
    assert main(["errors", "qqq"]) == 1
    assert capsys.readouterr().err.endswith("penstock errors lists all\n")
