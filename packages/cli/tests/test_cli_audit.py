"""`penstock audit`: what it finds in the logs that services write."""

import argparse
import io
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.cli._audit import main, moment
from penstock.cli._commands import KNOWN
from penstock.rpc import AuditLog


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Written by the code that services use."""
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file), "consumer-registry")
    lease = (("streams", "orders"), ("consumers", "orders-job"), ("jobs", "orders"))
    audit.changed(who="orders", address="10.0.0.7", change="acquire", outcome="OK", what=lease)
    audit.changed(who="orders", address="10.0.0.7", change="release", outcome="NOT_FOUND", reason="gone", what=lease)
    audit.refused(
        who="billing",
        address="10.0.0.8",
        method="/x/Acquire",
        reason="may not\x1b[31m",
        code="PERMISSION_DENIED",
        what=lease,
    )
    audit.refused(who="nobody", address="", method="/x/Acquire", reason="no token", code="UNAUTHENTICATED")
    audit.close()
    return file


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), ["orders acquire", "orders release", "billing refused", "nobody refused"]),
        (("--who", "orders"), ["orders acquire", "orders release"]),
        (("--event", "re*"), ["orders release", "billing refused", "nobody refused"]),
        (("--failed",), ["orders release", "billing refused", "nobody refused"]),
        (("--about", "orders-*"), ["orders acquire", "orders release", "billing refused"]),
        (("--from", "10.0.0.8"), ["billing refused"]),
        (("--service", "shard-*"), []),
        (("--since", "1h", "--who", "b*"), ["billing refused"]),
        (("--since", "2999-01-01T00:00:00Z"), []),
    ],
)
def test_it_finds_what_is_asked_for(
    log: Path, arguments: tuple[str, ...], found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """By who, what, where, when and how it ended; with all fields as JSON."""
    assert main([*arguments, str(log), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [f"{line['who']} {line['event']}" for line in lines] == found


def test_a_pipe_gets_a_line_each_and_no_escapes(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a client has sent commands no terminal."""
    assert main([str(log)]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 4
    assert "\x1b" not in out
    assert "orders orders-job orders\tNOT_FOUND\tgone" in out
    assert "\tunix\t" in out


def test_refusals_that_were_only_counted_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from standard input; what is not a line of the log is told of."""
    file = tmp_path / "audit.jsonl"
    audit = AuditLog(str(file), "shard-reader", clock=lambda: 1.0)
    for _ in range(150):
        audit.refused(who="nobody", address="10.0.0.9", method="/x/Open", reason="no token", code="UNAUTHENTICATED")
    audit.close()
    given = b'{"service": "ready"}\n\n[\xff]\n' + file.read_bytes() + b'{"time": "20'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    assert main([]) == 1
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 101
    assert "50 further calls were refused" in told.out
    assert "3 lines are not of an audit log" in told.err


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its name and the cure."""
    assert main([str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_moments_are_so_long_ago_or_by_the_calendar() -> None:
    """With a zone: whose clock would it be otherwise?"""
    now = datetime(2027, 1, 1, tzinfo=UTC)
    assert moment("90s", now).isoformat() == "2026-12-31T23:58:30+00:00"
    assert moment("7d", now).isoformat() == "2026-12-25T00:00:00+00:00"
    assert moment("2027-01-31T00:00:00Z").year == 2027
    for wrong in ("2027-01-31T00:00:00", "999999999d"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{wrong}' is not one of"):
            moment(wrong, now)


def test_the_command_is_known() -> None:
    """In the list that `penstock` shows."""
    assert "audit" in KNOWN
