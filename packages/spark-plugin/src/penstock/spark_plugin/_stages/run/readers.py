"""Who reads the stream consumers of a run's live queries: Kinesis serves one reader of each."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._stages.declare.declared import Declared, named
from penstock.spark_plugin._stages.plans.plans import LiveSource, plans_of
from penstock.spark_plugin.errors import OptionError, PipelineDefinitionError

if TYPE_CHECKING:
    from penstock.spark_plugin._stages.run.builder import StageBuilder

_log = logging.getLogger(__name__)


class _Consumer(NamedTuple):
    place: str
    stream: str
    name: str


def check_consumers(readers: Mapping[str, Sequence[Declared]], builder: "StageBuilder") -> None:
    """Refuse two queries with one stream consumer.

    Args:
        readers: The live sinks that read a source, by the source's name.
        builder: Of the run.

    Raises:
        PipelineDefinitionError: two queries have the same one.
    """
    taken: dict[_Consumer, list[tuple[Declared, Declared]]] = {}
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


def _consumers(source: LiveSource) -> Iterator[_Consumer]:
    if source.format != "kinesis":
        return
    try:
        options = KinesisOptions.parse(dict(source.options))
    except OptionError:
        return  # reported when the query starts
    if options.record_publisher != "efo":
        return
    place = f"{options.endpoint_url} {options.region} {options.role_arn}"
    for stream in options.stream_name or (options.stream_name_pattern or "",):
        # Without a name each query, and each read of one, has a consumer that its checkpoint names.
        if name := options.efo_consumer_arn.get(stream) or options.efo_consumer_name:
            yield _Consumer(place, options.arn_of(stream) or stream, name)
