"""The seam between a bounded read and the stream that goes on from it: one time, kept in a file."""

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock.efo_consumer import StreamPositions
from penstock.spark_plugin.errors import OffsetError


def seam_millis(path: Path, now: Callable[[], StreamPositions]) -> int:
    """The time of a seam, in milliseconds since 1970. Whoever asks first puts it there, for all who come later.

    Args:
        path: The file.
        now: Gives positions at this moment, by the service's clock; it is called if there is no file.

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
        temporary.write_text(json.dumps({"version": 1, "arrivalMillis": millis}))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass  # another was first
        finally:
            temporary.unlink()
    return _read(path)


def _read(path: Path) -> int:
    try:
        document = json.loads(path.read_text())
        if document["version"] == 1:
            return int(document["arrivalMillis"])
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetError(f"{path} is not a seam") from error
    raise OffsetError(f"{path} is a seam of version {document['version']}, which is not understood")
