"""Docstrings and tables as Markdown."""

import html
import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"(`[^`]*`)")
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_ENTRY = re.compile(r"^( {4}|\t)(\S[^:]*): (.*)$")


def escaped(text: str) -> str:
    """Text whose angle brackets are not HTML, outside of code."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else html.escape(part, quote=False) for part in parts)


def cell(text: object) -> str:
    """Text for a cell of a table."""
    return " ".join(escaped(str(text)).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; nothing without rows."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines]) + "\n"


def prose(docstring: str) -> str:
    """A docstring as Markdown: its sections become lists."""
    lines: list[str] = []
    in_section = in_code = False
    for line in docstring.splitlines():
        if line.startswith("```"):
            in_code = not in_code
        if in_code or line.startswith(("```", "├", "│", "└")):
            lines.append(line)
        elif section := _SECTION.match(line):
            in_section = True
            lines += ["", f"**{section[1]}:**", ""]
        elif in_section and (entry := _ENTRY.match(line)):
            # The names of several errors are separated by commas.
            names = ", ".join(f"`{name.strip()}`" for name in entry[2].split(","))
            lines.append(f"- {names}: {escaped(entry[3])}")
        elif in_section and line.startswith("    "):
            lines.append(f"  {escaped(line.strip())}")
        elif line.startswith("Cure: "):
            lines.append(f"**Cure:** {escaped(line.removeprefix('Cure: '))}")
        else:
            in_section = False
            lines.append(escaped(line))
    return "\n".join(lines).strip()
