"""The written pages of the documentation, and the code in them."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "pages"
BLOCK = re.compile(r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
FOLDERS = ("how-to", "migration", "operations", "contributors")
WRITTEN = sorted([PAGES / "troubleshooting.md", *(page for one in FOLDERS for page in (PAGES / one).glob("*.md"))])


def name_of(page: Path) -> str:
    """Return the page's folder and name, for results and tests."""
    return f"{page.parent.name}-{page.stem}"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return marker and code of each Python block."""
    return [(found["marker"] or "", found["code"]) for found in BLOCK.finditer(page.read_text())]


def runs(page: Path) -> bool:
    """Return whether the page has a block to run."""
    return any(not marker.startswith("not run") for marker, _ in blocks(page))


IAM = (PAGES / "operations" / "iam.md").read_text()
POLICIES = {
    name: json.loads(text)
    for name, text in re.findall(r"<!-- policy: ([a-z ]+) -->\n```json\n(.*?)```", IAM, re.DOTALL)
}


def actions(name: str) -> set[str]:
    """Return the actions that a policy of the IAM page allows."""
    found: set[str] = set()
    for statement in POLICIES[name]["Statement"]:
        listed = statement["Action"]
        found |= {listed} if isinstance(listed, str) else set(listed)
    return found
