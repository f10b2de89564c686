"""What the command of the demo says when something is not as it should be."""

from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

from penstock.demo import __main__ as command
from penstock.demo._telemetry import FOLDER_VARIABLE


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError("the emulator did not report 'ca_file' within 60 s; see emulator.log"), "see emulator.log"),
        (EndpointConnectionError(endpoint_url="https://kinesis.nowhere"), "https://kinesis.nowhere"),
    ],
)
def test_what_keeps_it_from_running_is_told_in_a_sentence(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that does not get ready, and a Kinesis that cannot be asked: no traceback."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("penstock.demo.__main__.signal.signal", lambda *_: None)
    monkeypatch.setenv("OTEL_PYTHON_TRACER_PROVIDER", "")
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    monkeypatch.setattr("penstock.demo.__main__.trace.get_tracer_provider", lambda: None)
    monkeypatch.setattr(command, "run_demo", fail)
    assert command.main(["--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("Penstock demo: ")
    assert words in said
