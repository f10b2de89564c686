import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_the_document_names_exists():
    """What is said to be protected is shown by a test of that name."""
    named = re.findall(r"`([\w/-]+\.py)::(\w+)`", TEXT)
    assert len(named) > 20
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{name}"


def test_every_protection_names_its_test():
    """No line of the table goes without."""
    table = TEXT.partition("## What is protected")[2].partition("##")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 10
    assert [line for line in lines if "::test_" not in line] == []
