"""How the rows of results in a store by URL are written and read: by Arrow in Python tasks, or by Spark."""

import hashlib
import logging
import threading
from collections.abc import Sequence
from enum import StrEnum

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.spark_plugin._for_stages import Objects
from penstock.spark_plugin.errors import StoreUnusableError

_log = logging.getLogger(__name__)


class StageFormat(StrEnum):
    """How the rows of results in a store by URL are written. They are Parquet files in any case."""

    ARROW = "arrow"
    SPARK = "spark"
    AUTO = "auto"


def spark_urls(url: str) -> Sequence[str]:
    """The names that a place may have for a session."""
    return [url, url.replace("s3://", "s3a://", 1)] if url.startswith("s3://") else [url]


class SparkFiles:
    """What Spark writes and reads in a store by URL, once it has been seen to do so."""

    def __init__(self, objects: Objects, wanted: StageFormat, store: str) -> None:
        """`store`: the name of the store, whose results are the objects."""
        self._objects = objects
        self._probes = f".probes/{hashlib.sha256(store.encode()).hexdigest()[:32]}"
        self._wanted = wanted
        self._lock = threading.Lock()
        self._reached: str | None = None
        self._reasons: list[str] | None = None
        if objects.spark_reaches:
            self._wanted, self._reached, self._reasons = StageFormat.SPARK, objects.url("").rstrip("/"), []

    def writes(self, spark: SparkSession) -> bool:
        """Whether Spark is to write. Raises: StoreUnusableError: Spark is to write, and cannot."""
        if self._wanted is StageFormat.ARROW:
            return False
        if self._reach(spark) is not None:
            return True
        if self._wanted is StageFormat.SPARK:
            raise self._unusable("stageFormat=spark: Spark does not write and read there", "give arrow or auto")
        return False

    def write(self, frame: DataFrame, folder: str) -> None:
        """Write the rows of a frame into a folder, by its key. Only after `writes`."""
        frame.write.parquet(f"{self._url(frame.sparkSession)}/{folder}")

    def read(self, spark: SparkSession, files: Sequence[str], schema: StructType) -> DataFrame:
        """The rows of files, by their keys.

        Raises:
            StoreUnusableError: Spark cannot read them.
        """
        if not files:
            return spark.createDataFrame([], schema)
        url = self._url(spark)
        return spark.read.schema(schema).parquet(*(f"{url}/{key}" for key in files))

    def _url(self, spark: SparkSession) -> str:
        root = self._reach(spark)
        if root is None:
            raise self._unusable(
                "a result there was written by Spark, which does not reach it now", "run it in a session that does"
            )
        return root

    def _unusable(self, what: str, cure: str) -> StoreUnusableError:
        return StoreUnusableError(self._objects.name, f"{what} ({'; '.join(self._reasons or ())}): {cure}")

    def _reach(self, spark: SparkSession) -> str | None:
        """The place as Spark names it, where what Spark writes there is seen by Arrow, and the other way round."""
        from penstock.spark_plugin._stages.plans.jobs import jobs_of

        with self._lock:
            if self._reasons is None:
                self._reasons, jobs = [], jobs_of(spark)
                for url in spark_urls(self._objects.name):
                    reason = self._probe(spark, url) if jobs.reaches(url) else "no file system for it"
                    if not reason:
                        self._reached = url
                        break
                    self._reasons.append(f"{url.partition(':')[0]}: {reason}")
                else:
                    _log.info("results in %s are written by Arrow: %s", self._objects.name, self._reasons)
            return self._reached

    def _probe(self, spark: SparkSession, url: str) -> str:
        """Why Spark's files there are not ours; empty if they are."""
        # One folder for all drivers of a store: each replaces what a killed driver left.
        folder = self._probes
        try:
            spark.range(1).write.mode("overwrite").parquet(f"{url}/{folder}")
            found = [one.key for one in self._objects.list(f"{folder}/")]
            if not any(key.endswith(".parquet") for key in found):
                return "what it writes there does not come to this place"
            if spark.read.parquet(f"{url}/{folder}").count() != 1:
                return "it does not read what it has written"
        except Exception as error:  # whatever its file system has
            return (str(error).splitlines() or [type(error).__name__])[0]
        finally:
            self._objects.delete([one.key for one in self._objects.list(f"{folder}/")])
        return ""
