"""Checks before a live query starts: its stream consumers, and the checkpoint that it continues from."""

import contextlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from penstock.spark_plugin._for_stages import StreamConsumer, other_streams, stream_consumers
from penstock.spark_plugin._stages.declare.declared import Declared, named
from penstock.spark_plugin._stages.plans.jobs import SessionJobs, jobs_of
from penstock.spark_plugin._stages.plans.plan import LiveSource, plans_of
from penstock.spark_plugin._stages.store.formats import spark_urls
from penstock.spark_plugin._stages.store.store import StageStore
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.builder import StageBuilder

_log = logging.getLogger(__name__)
_OF_SESSION = "spark.sql.streaming.checkpointLocation"
_VERSION = "v1"
_NO_OFFSET = "-"


def check_consumers(readers: Mapping[str, Sequence[Declared]], builder: "StageBuilder") -> None:
    """Refuse two queries with one stream consumer.

    Args:
        readers: The live sinks that read a source, by the source's name.
        builder: The builder of the run.

    Raises:
        PipelineDefinitionError: two queries have the same one.
    """
    taken: dict[StreamConsumer, list[tuple[Declared, Declared]]] = {}
    for name, sinks in readers.items():
        try:
            frame = builder.source(name)
            found = {one for source in plans_of(frame).live_sources(frame) for one in _consumers(source)}
        except PipelineDefinitionError:
            raise
        except Exception:  # found again, and reported, when its stage is deployed
            _log.debug("source %s cannot be looked at", name, exc_info=True)
            continue
        for consumer in found:
            taken.setdefault(consumer, []).extend((sink, builder.declared(name)) for sink in sinks)
    for consumer, pairs in taken.items():
        queries = {sink.name: sink for sink, _ in pairs}
        if len(queries) > 1:
            raise PipelineDefinitionError(
                f"{named(list(queries.values()))} are queries of their own, and read "
                f"{named(list({source.name: source for _, source in pairs}.values()))} with one stream consumer, "
                f"{consumer.name!r}, of which Kinesis serves one: declare a source for each with an efoConsumerName of "
                "its own, write both in one sink by foreachBatch, or read with recordPublisher=polling, by which each "
                "query reads the stream"
            )


def check_query(sink: Declared, sources: Sequence[LiveSource]) -> None:
    """Refuse a query that reads a stream twice with one stream consumer. Raises: PipelineDefinitionError."""
    counted = Counter(consumer for source in sources for consumer in _consumers(source))
    for consumer, count in counted.items():
        if count > 1:
            raise PipelineDefinitionError(
                f"sink {sink.name!r} ({sink.call_site}) reads the stream {consumer.stream!r} twice in one query with "
                f"one stream consumer, {consumer.name!r}, of which Kinesis serves one: read it once, give each read an "
                "efoConsumerName of its own, or read with recordPublisher=polling"
            )


def _consumers(source: LiveSource) -> Iterator[StreamConsumer]:
    return stream_consumers(source.options) if source.format == "kinesis" else iter(())


class Checkpoints:
    """The checkpoints of a run's live queries. A query that has made progress continues from there, or is refused."""

    def __init__(self, spark: SparkSession, store: StageStore, *, resume: bool) -> None:
        """`resume`: whether queries continue from where an earlier run stopped."""
        self._spark = spark
        self._store = store
        self._resume = resume
        self._jobs: SessionJobs = jobs_of(spark)
        self._taken: dict[str, str] = {}

    def location(self, sink: Declared, writer: Any, sources: Sequence[LiveSource]) -> str:
        """The checkpoint location of the query of a sink's writer; recorded in the store if the user gave it.

        `sources`: what the query reads.

        Raises:
            PipelineDefinitionError: the user's writer has another location than the query has used.
        """
        options = plans_of(writer).options(writer)
        own = self._own(sink.name)
        before = self._before(sink.name, own)
        given = options.get("checkpointlocation") or ""
        wanted = self._jobs.qualified(given) if given else before or self._of_session(options) or own
        if wanted is None:
            raise PipelineDefinitionError(
                f"sink {sink.name!r} ({sink.call_site}) has no checkpointLocation, and Spark cannot put one into the "
                f"store {self._store.name}, for whose scheme this session has no file system: give its writer a "
                "checkpointLocation that Spark reaches"
            )
        if before is not None and wanted != before:
            raise self._wrong(
                sink, wanted, f", but its query has its progress in {before}: give it that location, leave the option "
                "out, or use another store"
            )  # fmt: skip
        other = self._taken.get(wanted)
        if other is not None and other != sink.name:
            raise self._wrong(
                sink, wanted, f", which sink {other!r} has too: give each its own location, or leave the option out"
            )  # fmt: skip
        # A restarted query of this run was checked before.
        if wanted != own and other is None:
            self._check(sink, wanted, sources)
            if self._store.adopted(sink.name) != wanted:
                self._store.adopt(sink.name, wanted)
                _log.info("the query of sink %s has its checkpoint in %s", sink.name, wanted)
        self._taken[wanted] = sink.name
        return wanted

    def end_left(self, location: str) -> None:
        """Stop the query with this checkpoint if a killed driver left it in this session.

        Spark would refuse the next one because of its name.
        """
        active = {str(one.id): one for one in self._spark.streams.active}
        if not active:
            return
        with contextlib.suppress(AnalysisException):  # no query has started there
            for row in self._spark.read.text(f"{location}/metadata").collect():
                left = active.get(json.loads(row["value"])["id"])
                if left is not None:
                    _log.warning("stopping the query %s of a driver that was killed", left.name)
                    left.stop()

    def next_batch(self, location: str) -> int | None:
        """The next micro-batch of a query with this checkpoint; None if it is unknown."""
        try:
            rows = self._spark.read.text(f"{location}/commits").select("_metadata.file_name").distinct().collect()
        except AnalysisException as error:
            return 0 if error.getCondition() == "PATH_NOT_FOUND" else None
        return max((int(row["file_name"]) + 1 for row in rows if row["file_name"].isdigit()), default=0)

    def _own(self, sink: str) -> str | None:
        """The checkpoint of a sink in the store, as the session names it; None if Spark cannot reach the store."""
        names = spark_urls(self._store.checkpoint_url(sink))
        return next((self._jobs.qualified(one) for one in names if self._jobs.reaches(one)), None)

    def _before(self, sink: str, own: str | None) -> str | None:
        """The location in which the query has made progress; None if it has not started."""
        adopted = self._store.adopted(sink)
        if adopted is not None and self._offsets(adopted) is not None:
            return adopted
        return own if own is not None and self._offsets(own) is not None else None

    def _of_session(self, options: Any) -> str | None:
        """The checkpoint in the session's folder, where Spark looks for a named query; None if it has none."""
        folder, name = self._spark.conf.get(_OF_SESSION, None), options.get("queryname")
        if not folder or not name or not self._resume:
            return None
        location = self._jobs.qualified(f"{folder.rstrip('/')}/{name}")
        return location if self._offsets(location) is not None else None

    def _check(self, sink: Declared, location: str, sources: Sequence[LiveSource]) -> None:
        lines = self._offsets(location)
        if lines is None:
            return
        if not self._resume:
            raise self._wrong(
                sink, location, ", in which a query has made progress, and resume=False starts from the beginning: "
                "remove that folder, give another location, or leave the option out"
            )  # fmt: skip
        version, _, *offsets = lines
        if version != _VERSION:
            return  # Spark itself reports an unknown version
        another = ""
        if len(offsets) != len(sources):
            counted = f"{len(offsets)} streaming source{'' if len(offsets) == 1 else 's'}"
            another = f"it has read {counted}, and this one reads {len(sources)}"
        else:
            for offset, source in zip(offsets, sources, strict=True):
                if not another and source.format == "kinesis" and offset != _NO_OFFSET:
                    another = other_streams(offset, source.options)
        if another:
            raise self._wrong(
                sink, location, f", which belongs to another query: {another}; give this query's own, or leave it out"
            )  # fmt: skip

    def _offsets(self, location: str) -> list[str] | None:
        """Lines of the last entry of a checkpoint's offset log; None if no query has started."""
        try:
            # Read by Spark: it may be on a file system that only Spark can reach.
            rows = self._spark.read.text(f"{location}/offsets", wholetext=True).select("value", "_metadata.file_name")
            found = {int(row["file_name"]): row["value"] for row in rows.collect() if row["file_name"].isdigit()}
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return None
        return str(found[max(found)]).splitlines() if found else None

    def _wrong(self, sink: Declared, location: str, reason: str) -> PipelineDefinitionError:
        return PipelineDefinitionError(
            f"sink {sink.name!r} ({sink.call_site}) has the checkpointLocation {location}{reason}"
        )
