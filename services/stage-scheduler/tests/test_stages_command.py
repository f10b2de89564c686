import io
import json
from pathlib import Path

import pytest

from penstock.operator_attributes import Boundedness, JobGraph, OperatorAttributes, StagePlan, compile, explain
from penstock.services.stage_scheduler.__main__ import main


def job() -> JobGraph:
    graph = JobGraph("report")
    graph.add_source("sales", boundedness=Boundedness.BOUNDED, call_site="job.py:1")
    graph.add_operator(
        "daily",
        "sales",
        attributes=OperatorAttributes(output_only_after_end_of_stream=True),
        call_site="job.py:2",
    )
    graph.add_sink("table", "daily", call_site="job.py:3")
    return graph


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "job.json"
    path.write_text(job().to_json())
    return path


def test_explain_prints_the_stages(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text is the default."""
    assert main(["explain", str(document)]) == 0
    assert capsys.readouterr().out == explain(compile(job()))


@pytest.mark.parametrize(
    ("form", "expected"), [("mermaid", "==>|blocking|"), ("dot", "style=bold"), ("json", '"stage-2"')]
)
def test_explain_prints_other_formats(
    form: str, expected: str, document: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mermaid, Graphviz and JSON are for other programs."""
    assert main(["explain", str(document), "--format", form]) == 0
    assert expected in capsys.readouterr().out


def test_explained_json_is_the_plan(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be read back."""
    main(["explain", str(document), "--format", "json"])
    assert StagePlan.from_json(capsys.readouterr().out) == compile(job())


def test_explain_reads_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash in place of the file means standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(job().to_json().encode())))
    assert main(["explain", "-"]) == 0
    assert "stage-2  table" in capsys.readouterr().out


@pytest.mark.parametrize("handler", ["strict", "surrogateescape"])
def test_standard_input_that_is_not_utf_8_is_refused(
    handler: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However Python decodes it, which differs by locale: one line, and exit code 2."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8", errors=handler))
    assert main(["explain", "-"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("penstock stages: '-' holds no job graph ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("flag", ["--tls", "--endpoint=x:1", "--token-file=/x", "--ca-file=x", "--certificate-file=x"])
def test_a_file_is_explained_without_the_flags_of_a_service(
    flag: str, document: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would do nothing; variables, which apply to other commands too, contradict no file."""
    assert main(["explain", str(document), flag]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"penstock stages: {flag.partition('=')[0]} needs --job: a file is explained without a service\n",
    )
    monkeypatch.setenv("PENSTOCK_STAGES_TLS", "true")
    assert main(["explain", str(document)]) == 0


def test_a_job_that_cannot_be_compiled_is_reported_without_a_stack_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, and the operator with its call site."""
    document = json.loads(job().to_json())
    document["vertices"][0]["boundedness"] = "unbounded"
    path = tmp_path / "job.json"
    path.write_text(json.dumps(document))
    assert main(["explain", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock stages: 'daily' (job.py:2) emits only after")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--max-jobs", "0"], "--max-jobs (PENSTOCK_STAGES_MAX_JOBS): "),
        (["--max-jobs", "many"], "--max-jobs (PENSTOCK_STAGES_MAX_JOBS): 'many' is not a whole number"),
        (["--store", "sqlite:///nonexistent/x.db"], "--store (PENSTOCK_STAGES_STORE): "),
        (["--store", "dynamodb://jobs"], "--store (PENSTOCK_STAGES_STORE): "),
        (["--store", "/dev/null/x.db"], "/dev/null/x.db"),
        (["--host", "nowhere.invalid", "--allow-plain-text", "--allow-unauthenticated"], "nowhere.invalid"),
    ],
)
def test_unsafe_or_impossible_settings_are_refused_before_serving(
    arguments: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and the option's name; nothing is made in the working folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments]) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_an_exporter_that_is_not_installed_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans would be lost silently."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    assert main(["serve"]) == 2
    assert "carrier-pigeon" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read (No such file or directory): name a file"),
        ("{}", "holds no job graph"),
        ('{"version": 1}', "holds no job graph"),
        ("", "no job"),
    ],
)
def test_a_file_without_a_job_is_reported_with_an_example(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, words: str
) -> None:
    """In one line, by the name that was given, as the command was called."""
    file = tmp_path / "job.json"
    if text is not None:
        file.write_text(text)
    assert main(["explain", str(file)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"penstock stages: '{file}' ")
    assert (words in said, "Errno" in said, said.count("\n")) == (True, False, 1)
