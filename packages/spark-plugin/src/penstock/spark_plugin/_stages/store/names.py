"""Names that become parts of keys: each is one visible component, whatever its text."""

import hashlib
import re
from pathlib import Path
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
        # The store's own folders begin with a dot, as do the parents of a folder.
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
