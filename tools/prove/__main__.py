"""Prove what Penstock promises: `hatch run prove NAME`. Without a name the proofs are listed.

Ends with status 1 when a proof failed.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Protocol, cast

from tools.prove import continuity, fuzz, hostile, matrix, outages, ownership, release, soak

if TYPE_CHECKING:
    from collections.abc import Mapping


class Proof(Protocol):
    """What a module of a proof has."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its options."""

    def run(self, arguments: argparse.Namespace) -> bool:
        """Run the proof and return whether it holds."""


PROOFS: Mapping[str, Proof] = {
    "continuity": cast("Proof", continuity),
    "fuzz": cast("Proof", fuzz),
    "hostile": cast("Proof", hostile),
    "matrix": cast("Proof", matrix),
    "outages": cast("Proof", outages),
    "ownership": cast("Proof", ownership),
    "release": cast("Proof", release),
    "soak": cast("Proof", soak),
}


def main() -> int:
    """Run one proof, or list all."""
    parser = argparse.ArgumentParser(prog="hatch run prove", description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME")
    for name, proof in PROOFS.items():
        proof.add_arguments(names.add_parser(name, help=proof.SUMMARY, description=proof.SUMMARY))
    arguments = parser.parse_args()
    if arguments.name is None:
        for name, proof in PROOFS.items():
            print(f"{name:12} {proof.SUMMARY}")
        return 0
    return 0 if PROOFS[arguments.name].run(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
