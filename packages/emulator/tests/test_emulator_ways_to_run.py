"""The ways to run an emulator: on a loop, with companions, as a command, as pytest fixtures."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

from penstock.emulator import EmulatorConfigError
from penstock.emulator.testing import running_emulator, start_emulator_process

if TYPE_CHECKING:
    from penstock.emulator.testing import RunningEmulator

pytest_plugins = ["pytester"]


def test_companions_answer_beside_it() -> None:
    """moto's DynamoDB, SQS and STS are in the endpoints, on loopback, and gone afterwards; Firehose is our own."""
    with start_emulator_process("--with", "dynamodb,sqs,sts,firehose", "--no-tls") as emulator:
        assert emulator.endpoints["firehose"] == emulator.endpoints["kinesis"] == emulator.endpoint_url
        assert emulator.endpoints["sqs"].startswith("http://127.0.0.1:")
        assert emulator.endpoints["sqs"] != emulator.endpoint_url
        assert emulator.client("sqs").create_queue(QueueName="queue")["QueueUrl"].endswith("/queue")
        assert emulator.client("dynamodb").list_tables()["TableNames"] == []
        assert emulator.client("sts").get_caller_identity()["Account"]
        assert emulator.client("firehose").list_delivery_streams()["DeliveryStreamNames"] == []
    assert emulator.process.returncode == 0


def test_a_companion_that_is_not_known_is_an_error() -> None:
    """The error names the services."""
    with (
        pytest.raises(EmulatorConfigError, match="moto does not know telepathy") as caught,
        running_emulator(companions=("sqs", "telepathy")),
    ):
        pytest.fail("it started")
    assert caught.value.option == "companions"


def test_without_moto_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named; Firehose alone needs none."""
    find_spec = importlib.util.find_spec

    def without_moto(name: str, package: str | None = None) -> Any:
        return None if name == "moto" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_moto)
    with (
        pytest.raises(EmulatorConfigError, match=r"penstock-emulator\[companions\]"),
        running_emulator(companions=("sqs",)),
    ):
        pytest.fail("it started")
    with running_emulator(companions=("firehose",), tls=False) as emulator:
        assert set(emulator.endpoints) == {"kinesis", "firehose", "dynamodbstreams"}


def test_the_fixture_gives_each_test_its_own(kinesis_emulator: RunningEmulator, kinesis_client: Any) -> None:
    """A client of an empty emulator, without any preparation."""
    assert kinesis_client.meta.endpoint_url == kinesis_emulator.endpoint_url
    assert kinesis_client.list_streams()["StreamNames"] == []
    kinesis_client.create_stream(StreamName="stream", ShardCount=1)


@pytest.mark.kinesis_emulator(region="eu-central-1", consumers_per_stream=3)
def test_the_marker_gives_options(kinesis_emulator: RunningEmulator) -> None:
    """Those of EmulatorConfig, for this test."""
    assert kinesis_emulator.config.region == "eu-central-1"
    assert kinesis_emulator.config.consumers_per_stream == 3


def test_one_emulator_for_the_session(pytester: pytest.Pytester) -> None:
    """`kinesis_emulator_session` keeps its streams from test to test, with the project's options."""
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kinesis_emulator_options():
            return {"region": "eu-north-1"}
        """
    )
    pytester.makepyfile(
        """
        def test_first(kinesis_emulator_session):
            kinesis_emulator_session.client().create_stream(StreamName="stream", ShardCount=1)

        def test_second(kinesis_emulator_session, kinesis_client):
            names = kinesis_emulator_session.client().list_streams()["StreamNames"]
            assert names == ["stream"]
            assert kinesis_emulator_session.config.region == "eu-north-1"
            assert kinesis_client.list_streams()["StreamNames"] == []
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_plugin_costs_nothing_where_it_is_not_used(pytester: pytest.Pytester) -> None:
    """Neither the emulator nor what it needs is imported, and a project's own fixture of the same name wins."""
    pytester.makepyfile(
        """
        import sys
        import pytest

        @pytest.fixture
        def kinesis_client():
            return "mine"

        def test_mine(kinesis_client):
            assert kinesis_client == "mine"
            for name in ("botocore", "h2", "trustme", "penstock.emulator._server"):
                assert name not in sys.modules
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--strict-markers")
    result.assert_outcomes(passed=1)
