"""Who reads the stream consumers of a run's live queries: Kinesis serves one reader of each."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.spark_plugin._for_stages import StreamConsumer, stream_consumers
from penstock.spark_plugin._stages.declare.declared import Declared, named
from penstock.spark_plugin._stages.plans.plans import LiveSource, plans_of
from penstock.spark_plugin.errors import PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.builder import StageBuilder

_log = logging.getLogger(__name__)


def check_consumers(readers: Mapping[str, Sequence[Declared]], builder: "StageBuilder") -> None:
    """Refuse two queries with one stream consumer.

    Args:
        readers: The live sinks that read a source, by the source's name.
        builder: Of the run.

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
