"""What comes first in a search: pages that say what to do, before those that list names."""

from typing import Any

from mkdocs.structure.pages import Page

# The first one that a page's path begins with decides.
BOOSTS = {
    "how-to/when-it-breaks": 8,
    "operations/runbook": 4,
    "reference/errors": 2,
    "reference/options": 2,
    "reference/api/": 0.2,
    "reference/contracts": 0.2,
    "reference/": 0.5,
    "how-to/": 2,
    "tutorial/": 2,
}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Give the page its weight; one of its own is kept."""
    page.meta.setdefault("search", {"boost": boost(page.file.src_uri)})
    return markdown


def boost(path: str) -> float:
    """How much a word of a page counts."""
    return next((weight for begin, weight in BOOSTS.items() if path.startswith(begin)), 1)
