"""The seam between a bounded read and the stream that goes on from it: one time, kept in a file or on S3."""

import json
import os
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from penstock.aws import AwsSession
from penstock.efo_consumer import StreamPositions
from penstock.spark_plugin._objects import S3Objects
from penstock.spark_plugin._places import Place
from penstock.spark_plugin.errors import OffsetError


def seam_millis(path: Path, now: Callable[[], StreamPositions]) -> int:
    """The time of a seam, in milliseconds since 1970. Whoever asks first puts it there, for all who come later.

    Args:
        path: The file.
        now: Gives positions at this moment, by the service's clock; it is called if there is no file.

    Raises:
        OffsetError: the file does not hold a seam.
    """
    if not path.exists():
        millis = _latest(now())
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
    return _parse(path, path.read_text())


def seam_millis_on_s3(url: str, session: AwsSession, now: Callable[[], StreamPositions]) -> int:
    """As `seam_millis`, of an object that is made on the condition that there is none.

    It is reached with the credentials and the region of the session, at S3's own endpoint.

    Raises:
        OffsetError: the object does not hold a seam.
        penstock.aws.AwsError: the bucket does not exist, or cannot be used.
    """
    folder, _, key = url.rpartition("/")
    of_s3 = AwsSession(replace(session.options, endpoint_url=None, ca_bundle=None))
    objects = S3Objects(Place.parse(folder), session=of_s3)
    try:
        found = objects.read(key)
        if found is None:
            document = {"version": 1, "arrivalMillis": _latest(now()), "nonce": secrets.token_hex(8)}
            objects.write(key, json.dumps(document).encode(), if_version=None)
            found = objects.read(key)
            if found is None:
                raise OffsetError(f"{url} was removed as soon as it was made")
        return _parse(url, found.data)
    finally:
        objects.close()


def _latest(positions: StreamPositions) -> int:
    return min(position.timestamp_millis or 0 for shards in positions.streams.values() for position in shards.values())


def _parse(name: object, text: str | bytes) -> int:
    try:
        document = json.loads(text)
        if document["version"] == 1:
            return int(document["arrivalMillis"])
    except (ValueError, KeyError, TypeError) as error:
        raise OffsetError(f"{name} is not a seam") from error
    raise OffsetError(f"{name} is a seam of version {document['version']}, which is not understood")
