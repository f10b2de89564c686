"""What a Dockerfile of the repository makes: read, to be checked and to be run without a container engine."""

from __future__ import annotations

import io
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from dockerfile_parse import DockerfileParser


@dataclass(frozen=True, kw_only=True)
class Image:
    """The last stage of a Dockerfile, and what its first one installs."""

    base_images: tuple[str, ...]
    """One per stage, with arguments filled in."""
    build: str
    """What the first stage has its shell run."""
    requirement: str
    """What that installs into the image's environment."""
    preparation: str
    """What the last stage has its shell run."""
    environment: dict[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    health: tuple[str, ...]
    user: str
    stop_signal: str
    ports: tuple[int, ...]
    labels: dict[str, str]


def find_dockerfiles(root: Path) -> list[Path]:
    """Those of all members, in order."""
    return sorted(path for kind in ("packages", "services") for path in (root / kind).glob("*/Dockerfile"))


def read_image(dockerfile: Path) -> Image:
    """What a Dockerfile makes. Raises: KeyError, ValueError when an instruction that images have is missing or odd."""
    parsed = DockerfileParser(fileobj=io.BytesIO(dockerfile.read_bytes()))
    stages: list[dict[str, list[str]]] = []
    for instruction in parsed.structure:
        if instruction["instruction"] == "FROM":
            stages.append({})
        elif stages:
            stages[-1].setdefault(instruction["instruction"], []).append(instruction["value"])
    first, last = stages
    (build,), (preparation,) = first["RUN"], last["RUN"]
    found = re.search(r"pip install .* (\S+)$", build)
    if found is None:
        raise ValueError(f"{dockerfile} installs nothing")
    return Image(
        base_images=tuple(parsed.parent_images),
        build=build,
        requirement=found[1],
        preparation=preparation,
        environment=_pairs(last.get("ENV", [])),
        entrypoint=_words(last["ENTRYPOINT"][-1]),
        command=_words(last["CMD"][-1]),
        health=_words(last["HEALTHCHECK"][-1].partition("CMD ")[2]),
        user=last["USER"][-1],
        stop_signal=last["STOPSIGNAL"][-1],
        ports=tuple(int(port) for rest in last["EXPOSE"] for port in rest.split()),
        labels=_pairs(last["LABEL"]),
    )


def _pairs(lines: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for line in lines for word in shlex.split(line)]
    return {name: value for name, _, value in pairs}


def _words(text: str) -> tuple[str, ...]:
    words = json.loads(text)
    if not isinstance(words, list):
        raise ValueError(f"{text} is not in the form of a JSON list: a shell would take the signals")
    return tuple(map(str, words))
