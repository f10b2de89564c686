"""The written pages of the documentation, and the code in them."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "pages"
BLOCK = re.compile(r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
WRITTEN = sorted(page for folder in ("how-to", "migration", "operations") for page in (PAGES / folder).glob("*.md"))


def name_of(page: Path) -> str:
    """Folder and page, as a name for results and tests."""
    return f"{page.parent.name}-{page.stem}"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Marker and code of each block of Python."""
    return [(found["marker"] or "", found["code"]) for found in BLOCK.finditer(page.read_text())]


def runs(page: Path) -> bool:
    """Whether there is a block that is run."""
    return any(not marker.startswith("not run") for marker, _ in blocks(page))


IAM = (PAGES / "operations" / "iam.md").read_text()
POLICIES = {
    name: json.loads(text)
    for name, text in re.findall(r"<!-- policy: ([a-z ]+) -->\n```json\n(.*?)```", IAM, re.DOTALL)
}


def actions(name: str) -> set[str]:
    """The actions that a policy of the page on IAM allows."""
    found: set[str] = set()
    for statement in POLICIES[name]["Statement"]:
        listed = statement["Action"]
        found |= {listed} if isinstance(listed, str) else set(listed)
    return found
