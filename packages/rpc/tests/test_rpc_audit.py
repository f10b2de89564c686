"""What the audit log leaves out, and how large it can become."""

import json
from pathlib import Path

import pytest

from penstock.rpc._server.audit import AuditLog


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def refuse(log: AuditLog, who: str = "nobody", method: str = "/service/Method", reason: str = "no token") -> None:
    log.write("refused", who=who, address="203.0.113.7", method=method, reason=reason, outcome="UNAUTHENTICATED")


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_day_of_refusals_takes_megabytes_however_many_there_are(tmp_path: Path) -> None:
    """A hundred at once, then five a second, and the others counted."""
    clock = Clock()
    log = AuditLog(str(tmp_path / "audit"), "registry", clock=clock)
    for _ in range(600):
        for _ in range(50):
            refuse(log, method="/" + "x" * 8_000)
        clock.now += 1
    log.close()
    lines = lines_of(tmp_path / "audit")
    assert sum(int(str(line.get("further", 1))) for line in lines) == 600 * 50
    written = [line for line in lines if "further" not in line]
    assert len(written) <= 100 + 5 * 600
    a_day = (tmp_path / "audit").stat().st_size * 24 * 3_600 / 600
    assert a_day < 500e6


def test_strangers_hide_no_principal(tmp_path: Path) -> None:
    """Their refusals are counted apart, and changes are always written."""
    log = AuditLog(str(tmp_path / "audit"), "registry", clock=Clock())
    for _ in range(1_000):
        refuse(log)
    refuse(log, who="orders", reason="may not use stream 'payments'")
    log.write("acquire", who="billing", address="", outcome="OK")
    assert [(line["event"], line["who"]) for line in lines_of(tmp_path / "audit")[-3:]] == [
        ("refused", "nobody"),
        ("refused", "orders"),
        ("acquire", "billing"),
    ]


def test_passwords_in_urls_are_left_out(tmp_path: Path) -> None:
    """Clients choose what a line names."""
    log = AuditLog(str(tmp_path / "audit"), "gateway", clock=Clock())
    url = "sqs:https://user:planted-secret@sqs.example/queue"
    log.write("open destination", who="orders", address="", outcome="OK", what=[("destinations", url)])
    log.write("submit", who="orders", address="", outcome="OK", what=[("jobs", "https://u:a@planted-secret@b/c@d")])
    refuse(log, method=f"/{url}", reason=f"may not use {url}")
    text = (tmp_path / "audit").read_text()
    assert "planted-secret" not in text
    assert text.count("sqs:https://***@sqs.example/queue") == 3
    assert "https://***@b/c@d" in text


@pytest.mark.parametrize("character", ["x", '"', "\n", "é", "😀"])
def test_a_line_has_at_most_4_kb(tmp_path: Path, character: str) -> None:
    """Whatever the caller names, and however much of it. What is left out is counted."""
    log = AuditLog(str(tmp_path / "audit"), "registry", clock=Clock())
    text = character * 100_000
    streams = [("streams", f"{number}-{character * 50}") for number in range(50_000)]
    log.write("refused", who=text, address=text, method=text, reason=text, outcome="DENIED", what=streams)
    content = (tmp_path / "audit").read_bytes()
    assert len(content) <= 4_096
    line = json.loads(content)
    (more,) = line["more"]
    assert more == f"… and {50_000 - len(line['streams']):,} more"


def test_changes_have_the_same_budget_as_refusals(tmp_path: Path) -> None:
    """A flood of one event does not hide another event of the same caller."""
    log = AuditLog(str(tmp_path / "audit"), "registry", clock=Clock())
    for _ in range(1_000):
        log.write("announce", who="orders", address="", outcome="OK")
    log.write("acquire", who="orders", address="", outcome="OK")
    log.close()
    lines = lines_of(tmp_path / "audit")
    assert [line["event"] for line in lines].count("announce") == 101
    assert sum(int(str(line.get("further", 1))) for line in lines if line["event"] == "announce") == 1_000
    assert [line["event"] for line in lines].count("acquire") == 1
