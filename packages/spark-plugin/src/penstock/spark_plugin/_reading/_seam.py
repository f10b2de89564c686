"""The seam between a bounded read and the stream that goes on from it: one time, kept in a file."""

import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.efo_consumer import StreamPositions
from penstock.spark_plugin.errors import OffsetError

SETTLE_SECONDS = 2.0
"""How long after its time a seam is read up to. The service's clock has passed it by then, though the local one may be
almost a second ahead without anybody noticing: no record can arrive before the seam any more."""


def seam_millis(path: Path, now: Callable[[], StreamPositions], *, clock: Callable[[], float] = time.time) -> int:
    """The time of a seam, in milliseconds since 1970. Whoever asks first puts it there, for all who come later.

    Args:
        path: The file.
        now: Gives positions at this moment, by the service's clock; it is called if there is no file.
        clock: Seconds since 1970.

    Raises:
        OffsetError: The file is no seam.
    """
    if not path.exists():
        millis = min(
            position.timestamp_millis or 0 for shards in now().streams.values() for position in shards.values()
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        # Drivers in containers have the same few process ids, and may share the folder.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({"version": 1, "arrivalMillis": millis, "resolvedAt": clock()}))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another was first
        finally:
            temporary.unlink()
    return int(_read(path)["arrivalMillis"])


def wait_for_seam(
    path: Path, *, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Wait until no record can arrive before a seam any more."""
    age = clock() - _read(path)["resolvedAt"]
    # A clock that was set back, or another host's, may be behind that of whoever made the seam.
    if age < SETTLE_SECONDS:
        sleep(min(SETTLE_SECONDS, SETTLE_SECONDS - age))


def _read(path: Path) -> dict[str, float]:
    try:
        document = json.loads(path.read_text())
        if document["version"] == 1:
            return {name: float(document[name]) for name in ("arrivalMillis", "resolvedAt")}
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetError(f"{path} is not a seam") from error
    raise OffsetError(f"{path} is a seam of version {document['version']}, which is not understood")
