"""The streams that a run of a query reads: those that its checkpoint knows, and those that come to match a pattern."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.efo_consumer import StreamPositions
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType
from penstock.spark_plugin._reading.stream.offsets import Offset
from penstock.spark_plugin._reading.stream_names import StreamKeys, existing, with_streams
from penstock.spark_plugin.errors import OffsetError

if TYPE_CHECKING:
    from penstock.aws import AwsSession

_log = logging.getLogger(__name__)

_DEFAULT_SECONDS = 300.0
_END_SECONDS = 10.0
"""Longer than listing streams takes; a consumer that is waited for is registered or not by then."""


class StreamDiscovery:
    """Looks for further streams from time to time, in a thread of its own, while the query continues.

    What fails is reported in a warning and by `failure`, and is done again at the next time.

    Args:
        look: Gives the streams that are not read yet, each at its beginning.
        prepare: Leases their consumers.
        interval: Seconds between two looks; None for the default, 0 for none.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, StreamPositions]],
        prepare: Callable[[Sequence[str]], None],
        interval: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._prepare = prepare
        self._interval = _DEFAULT_SECONDS if interval is None else interval
        self._clock = clock
        self._due = clock() + self._interval
        self._thread: threading.Thread | None = None
        self._found: Mapping[str, StreamPositions] = {}
        self._is_closed = False
        self.failure = ""
        """Why streams that match may not be read yet; empty if the last look went well."""

    def news(self) -> Mapping[str, StreamPositions]:
        """What a look found since the last call, ready to be read; begins another one when that is due."""
        if self._thread is not None:
            if self._thread.is_alive():
                return {}
            self._thread = None
            found, self._found = self._found, {}
            return found
        if self._interval and self._clock() >= self._due:
            self._due = self._clock() + self._interval
            self._thread = threading.Thread(target=self._run, name="penstock stream discovery", daemon=True)
            self._thread.start()
        return {}

    def close(self) -> None:
        """Look no more. What is being leased meanwhile is waited for, so that it can be given back."""
        self._is_closed = True
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        try:
            found = self._look()
            if found and not self._is_closed:
                self._prepare(tuple(found))
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            if not self._is_closed:
                _log.warning("streams that match streamNamePattern by now are looked for again later: %s", error)
        else:
            self.failure, self._found = "", found


_TRIM_HORIZON = PositionOption(PositionOptionType.TRIM_HORIZON)


class QueryStreams:
    """The streams of one run. Kinesis is asked once, when something is first needed."""

    def __init__(
        self, options: KinesisOptions, resolve: Callable[[KinesisOptions], StreamPositions] | None = None
    ) -> None:
        """Make it. Tests give the positions to begin at instead of Kinesis' own."""
        self._given = options
        self._resolve = resolve
        self._options: KinesisOptions | None = None
        self._keys: StreamKeys | None = None
        self._added: dict[str, StreamPositions] = {}

    @property
    def options(self) -> KinesisOptions:
        """With the names of all streams of this run.

        Raises:
            penstock.efo_consumer.InitialPositionError: the streams of a pattern cannot be listed.
        """
        if self._options is None:
            self._options = with_streams(self._given, self._session)
        return self._options

    @property
    def keys(self) -> StreamKeys:
        """What the reader calls them."""
        if self._keys is None:
            self._keys = StreamKeys(self.options)
        return self._keys

    def initial(self) -> StreamPositions:
        """Where a new query begins."""
        return self._positions(self.options)

    def begin(self, offset: Offset) -> StreamPositions:
        """Where this run continues from an offset: added streams are at their beginning, dropped ones are left out.

        Raises:
            OffsetError: the offset has a stream that is not read any more, and `failOnDataLoss` is true.
            penstock.efo_consumer.InitialPositionError: the beginning of an added stream cannot be found.
        """
        known, read = offset.positions.streams, self.options.stream_name
        gone = sorted(known.keys() - set(read))
        if gone and self.options.fail_on_data_loss:
            raise OffsetError(
                f"the checkpoint is of the streams {', '.join(sorted(known))}; the query reads "
                f"{', '.join(sorted(read))}. "
                f"Read {', '.join(gone)} again, begin a new checkpoint, or set failOnDataLoss to false to skip what "
                "was not read of it"
            )
        for stream in gone:
            if stream not in self._added:
                _log.warning("stream %s is dropped at its last position in the checkpoint: it is not read", stream)
                self._added[stream] = StreamPositions({})
        added = [stream for stream in read if stream not in known]
        if not gone and not added:
            return offset.positions
        left = _without(offset.positions, set(gone))
        streams, created = {**left.streams}, {**left.created}
        for stream in added:
            beginning = self._beginning(stream)
            streams |= beginning.streams
            created |= beginning.created
        return StreamPositions(streams, created)

    def look(self) -> dict[str, StreamPositions]:
        """The beginnings of streams that match the pattern by now and are not read. Safe in a thread of its own.

        Raises:
            penstock.efo_consumer.InitialPositionError: a stream cannot be listed, or its beginning not be found.
        """
        names = with_streams(self._given, self._session).stream_name
        return {name: self._positions(self._alone(name)) for name in names if name not in self.options.stream_name}

    def add(self, found: Mapping[str, StreamPositions]) -> None:
        """Read these streams as well, from there, unless the checkpoint knows better."""
        self._options = replace(self.options, stream_name=(*self.options.stream_name, *found))
        self._keys = None
        self._added |= found

    def readable(self, start: StreamPositions, end: StreamPositions) -> tuple[StreamPositions, StreamPositions]:
        """Both ends of a range that was logged, without streams that were dropped and no longer exist."""
        options = self.options
        given_up = {stream for one in (start, end) for stream in one.streams} - set(options.stream_name)
        if not given_up:
            return start, end
        lost = given_up.difference(existing(self._session(), {one: one for one in given_up}, options.retry_patience))
        for stream in sorted(lost):
            _log.warning("stream %s does not exist: what was not read of it is skipped", stream)
        return _without(start, lost), _without(end, lost)

    def _session(self) -> "AwsSession":
        # Tasks import this module too, and never need it.
        from penstock.aws import AwsSession
        from penstock.spark_plugin._connections import aws_options

        return AwsSession(aws_options(self._given))

    def _beginning(self, stream: str) -> StreamPositions:
        """The beginning of a stream that the checkpoint does not contain; resolved once, because LATEST changes."""
        if stream not in self._added:
            self._added[stream] = self._positions(self._alone(stream))
        return self._added[stream]

    def _alone(self, stream: str) -> KinesisOptions:
        """The options of a stream that the checkpoint does not know, with its position."""
        given = self._given
        position = given.added_stream_position or (
            _TRIM_HORIZON if given.stream_name_pattern is not None else given.initial_position
        )
        _log.info("stream %s is new to the checkpoint, and begins at %s", stream, position)
        return self.options.alone(stream, position)

    def _positions(self, options: KinesisOptions) -> StreamPositions:
        if self._resolve is None:
            from penstock.spark_plugin._reading.initial_positions import initial_positions

            self._resolve = initial_positions
        return self._resolve(options)


def _without(positions: StreamPositions, streams: set[str]) -> StreamPositions:
    return StreamPositions(
        {name: shards for name, shards in positions.streams.items() if name not in streams},
        {name: millis for name, millis in positions.created.items() if name not in streams},
    )
