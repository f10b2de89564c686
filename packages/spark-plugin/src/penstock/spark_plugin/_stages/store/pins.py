"""The results that a run uses, by name of the stage."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from penstock.spark_plugin.errors import StoreUnusableError

_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]")
_FINGERPRINT = re.compile(r"[A-Za-z0-9_-]{1,128}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""One letter is a drive's."""
_LONGEST = 150


def safe_name(name: str) -> str:
    """The name as one component of a path: never hidden, never `..`, and short enough with what is added to it."""
    text = _UNSAFE.sub("_", name) or "_"
    if text.startswith("."):
        # The store's own folders start with a dot, and so do the parents of a folder.
        text = "_" + text[1:]
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
    return text


def is_fingerprint(text: object) -> bool:
    """Whether it can be a fingerprint, and so the name of a folder."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def store_folder(path: str | Path) -> Path:
    """The folder that a store's path means.

    Raises:
        StoreUnusableError: the path is not on a file system that is mounted here.
    """
    if not _URL.match(str(path)):
        return Path(path)
    parts = urlsplit(str(path))
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise StoreUnusableError(
            str(path),
            "it is not mounted here, and Arrow has no file system for it; mount it, or give a place on s3://, gs://, "
            "abfss:// or hdfs://. Sources, sinks and a checkpointLocation may be wherever Spark reaches them",
        )
    return Path(unquote(parts.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The result of a stage that a run uses."""

    fingerprint: str
    code: str
    """Fingerprint of the stage's functions alone, without what its sources read."""
    inputs: Mapping[str, str]
    """Fingerprints of the results that it read, by stage."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of its sources by name, the same for all stages that one run computed."""
    plans: str = ""
    """Fingerprint of the plans of its operators, without what their inputs hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPins:
    """The results that the last run on a store uses.

    A run is open until all of its stages have ended; one with a live stage stays open, also while no driver runs it.
    The next driver continues an open run with the results that it began with, whatever its sources hold by now.
    """

    pipeline: str
    store: str
    """The store of the run; results may be shared between stores."""
    stages: Mapping[str, Pin] = field(default_factory=dict)
    ended: bool = False
    refreshing: Mapping[str, Pin] = field(default_factory=dict)
    """Results of a refresh that runs; no other driver may remove them."""

    @classmethod
    def parse(cls, text: str | bytes) -> Self | None:
        """The pins of a text; None where it holds none."""
        try:
            document = json.loads(text)
            stages, refreshing = (
                {name: Pin(**pin) for name, pin in document.get(kind, {}).items()} for kind in ("stages", "refreshing")
            )
            if not all(is_fingerprint(pin.fingerprint) for pin in (*stages.values(), *refreshing.values())):
                return None
            return cls(
                pipeline=document["pipeline"],
                store=document["store"],
                stages=stages,
                ended=document["ended"],
                refreshing=refreshing,
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
