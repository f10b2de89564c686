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
_OBJECTS = "is reached by no file system of Arrow"
_CURES = {
    "Azure by that scheme": (("wasb", "wasbs", "adl"), _OBJECTS, "Azure Files by NFS, or give a place on abfss://"),
    "WebHDFS": (("webhdfs",), _OBJECTS, "NFS or CephFS, or give a place on hdfs://"),
    "DBFS": (("dbfs",), _OBJECTS, "NFS by an init script, or give a place on s3://, abfss:// or gs://"),
}
"""By who has it: schemes, what it lacks for a store, and what to mount instead."""
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
    for whose, (schemes, lacks, mount) in _CURES.items():
        if parts.scheme.lower() in schemes:
            raise StoreUnusableError(
                str(path),
                f"{whose} {lacks}; mount {mount}. Sources, sinks and a checkpointLocation of a sink's own may lie "
                "wherever Spark reaches them",
            )
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise StoreUnusableError(str(path), "it is on no file system that is mounted here")
    return Path(unquote(parts.path))
