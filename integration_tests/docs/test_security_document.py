import argparse
import re
from pathlib import Path

from penstock.rpc import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_the_document_names_exists() -> None:
    """What is said to be protected is shown by a test of that name."""
    named = re.findall(r"`([\w/-]+\.py)::(\w+)`", TEXT)
    assert len(named) > 20
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{name}"


def test_every_protection_names_its_test() -> None:
    """No line of the table goes without."""
    table = TEXT.partition("\n## What is protected")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line.startswith(("| protection", "| ---"))]
    assert len(lines) > 30
    assert [line for line in lines if "::test_" not in line] == []


def test_each_row_about_data_at_rest_names_a_test_or_none() -> None:
    """Each row names a test, or states that Penstock does nothing."""
    table = TEXT.partition("## Data at rest")[2].partition("##")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 5
    assert [line for line in lines if "::test_" not in line and "| nothing: " not in line] == []


def test_each_setting_that_the_documents_name_is_there() -> None:
    """Settings that services share. Other settings are checked with their own pages."""
    parser = argparse.ArgumentParser()
    ServerSettings.add_arguments(parser, "PENSTOCK_READER")
    known = set(re.findall(r"--[a-z][a-z-]+", parser.format_help()))
    others = {
        "--allow-insecure-endpoint",
        "--build-arg",
        "--required",
        "--upgrade",
    }
    others |= {"--minutes", "--corpus", "--who", "--event", "--since"}
    rights = (ROOT / "docs" / "pages" / "operations" / "who-may-do-what.md").read_text()
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT + rights))
    assert named - known - others == set()
    assert {"--principals", "--audit-log"} <= named
