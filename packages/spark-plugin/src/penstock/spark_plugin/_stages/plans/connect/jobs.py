"""Jobs of a Spark Connect session: named by tags, with settings as texts."""

import contextlib
import re
from collections.abc import Iterator

from pyspark.core.status import StatusTracker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.connect.readwriter import DataFrameWriter
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

from penstock.spark_plugin._for_stages import tell_lines

_SIZE = re.compile(r"(-?\d+)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40, "p": 50}


class ConnectJobs:
    """See `SessionJobs`. A client has neither a status tracker nor local properties."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @contextlib.contextmanager
    def group(self, name: str, description: str, traceparent: str | None) -> Iterator[None]:
        tag = tag_of(name)
        self._spark.addTag(tag)
        try:
            yield
        finally:
            self._spark.removeTag(tag)

    def cancel(self, name: str) -> None:
        self._spark.interruptTag(tag_of(name))

    def tracker(self) -> StatusTracker | None:
        return None

    def shuffle_partitions(self) -> int:
        return int(self._spark.conf.get("spark.sql.shuffle.partitions") or 200)

    def broadcast_bytes(self) -> int:
        return size_of(self._spark.conf.get("spark.sql.autoBroadcastJoinThreshold") or "10MB")

    def qualified(self, path: str) -> str:
        return path.rstrip("/")

    def reaches(self, path: str) -> bool:
        try:
            self._spark.read.text(path).schema  # noqa: B018  # asks the server
        except PySparkException as error:
            return error.getCondition() == "PATH_NOT_FOUND"
        return True

    def is_batch_writer(self, value: object) -> bool:
        return isinstance(value, DataFrameWriter)

    def is_stream_writer(self, value: object) -> bool:
        return isinstance(value, DataStreamWriter)

    def tell_lines(self) -> None:
        tell_lines(self._spark)


def tag_of(name: str) -> str:
    """A name as a tag, which has no commas."""
    return name.replace(",", "_")


def size_of(text: str) -> int:
    """Bytes, of Spark's text for them: `10MB`, `1048576b`, `-1`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(match[1]) << _POWERS[match[2].lower()] if match[1] != "-1" else -1
