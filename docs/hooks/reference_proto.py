"""The page of contracts, from the comments of the `.proto` files."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from reference_text import cell, escaped

_BLOCK = re.compile(r"^(service|message|enum|extend) ([\w.]+) \{(\})?")
_RPC = re.compile(r"^rpc (\w+)\((.*?)\) returns \((.*?)\)")
_FIELD = re.compile(r"^((?:optional |repeated )?[\w.<>, ]+?) ?(\w+) = (-?\d+)")
_RULES = re.compile(r"\[\(rules\.v1\.field\) = \{(.*)\}\]")
_RULE_WORDS: dict[str, Callable[[str], str]] = {
    "resource": lambda value: value.removeprefix("RESOURCE_").lower(),
    "required": lambda _: "required",
    "max_bytes": lambda value: f"{int(value):,} bytes",
    "max_items": lambda value: f"{int(value):,} items",
    "alphabet": lambda value: value.removeprefix("ALPHABET_").lower(),
    "maximum": lambda value: f"0 to {int(value):,}",
    "is_shortened": lambda _: "shortened by clients",
    "is_own_id": lambda _: "id of the caller's own",
    "is_dry_run": lambda _: "no admin rights needed",
    "order": lambda value: "in pages by " + value.strip('"'),
}
_HEADS = {
    "service": ("call", "request", "answer", ""),
    "message": ("field", "type", "number", "", "rules"),
    "enum": ("value", "", "number", ""),
    "extend": ("option", "type", "number", "", ""),
}


@dataclass
class Block:
    """A service, a message or an enumeration, with its rows."""

    kind: str
    name: str
    comment: str
    rows: list[tuple[str, ...]] = field(default_factory=list)


@dataclass
class Contract:
    """A `.proto` file."""

    package: str = ""
    comment: str = ""
    blocks: list[Block] = field(default_factory=list)


def parse(text: str) -> Contract:
    """Parse a file. A comment belongs to the definition after it."""
    contract = Contract()
    comment: list[str] = []
    open_blocks: list[Block | None] = []  # None: a oneof, whose fields belong to its message
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        said, comment = " ".join(comment), [] if line else comment
        owner = next((one for one in reversed(open_blocks) if one is not None), None)
        if line.startswith("package "):
            contract.package, contract.comment = line.removeprefix("package ").rstrip(";"), said
        elif block := _BLOCK.match(line):
            name = f"{owner.name}.{block[2]}" if owner else block[2]
            contract.blocks.append(Block(block[1], name, said))
            if not block[3]:
                open_blocks.append(contract.blocks[-1])
        elif line.startswith("oneof ") or (line.startswith("rpc ") and line.endswith("{")):
            open_blocks.append(None)
        elif line == "}":
            open_blocks.pop()
        if owner is not None and (call := _RPC.match(line)):
            owner.rows.append((f"`{call[1]}`", f"`{call[2]}`", f"`{call[3]}`", said))
        elif owner is not None and owner.kind == "enum" and (value := re.match(r"(\w+) = (\d+)", line)):
            owner.rows.append((f"`{value[1]}`", "", value[2], said))
        elif owner is not None and not line.startswith(("reserved", "option ")) and (one := _FIELD.match(line)):
            owner.rows.append((f"`{one[2]}`", f"`{one[1].strip()}`", one[3], said, _rules(line)))
    return contract


def _rules(line: str) -> str:
    """Return the rules of a field as text."""
    found = _RULES.search(line)
    rules = [] if found is None else [one.partition(": ") for one in found[1].split(", ")]
    return ", ".join(_RULE_WORDS[name](value) for name, _, value in rules)


def page(root: Path) -> str:
    """The page of all contracts of a repository."""
    parts = [
        "# Contracts\n",
        "The gRPC services, with the comments of the `.proto` files. The generated Python code is `penstock-proto`. "
        "A package version (`v1`) only gains fields.\n",
        "A request that breaks the rules of a field fails with INVALID_ARGUMENT. A request for a resource to which the "
        "caller has no right fails with PERMISSION_DENIED. Lengths are maxima.\n",
    ]
    for file in sorted((root / "proto").rglob("*.proto")):
        contract = parse(file.read_text())
        parts += [f"## {contract.package}\n", escaped(contract.comment), ""]
        for block in contract.blocks:
            parts += [f"### {block.name}\n", f"*{block.kind}*: {escaped(block.comment)}\n"]
            if block.rows:
                parts += [f"| {' | '.join(_HEADS[block.kind])} |", "| --- " * len(_HEADS[block.kind]) + "|"]
                parts += [f"| {' | '.join(map(cell, row))} |" for row in block.rows]
                parts.append("")
    return "\n".join(parts)
