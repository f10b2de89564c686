"""The sink for a stream."""

from collections.abc import Callable, Iterable

from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._defaults import paced_strategy
from penstock.async_sink._kinesis._entry import KinesisRequestEntry
from penstock.async_sink._kinesis._writer import KinesisStreamsWriter
from penstock.async_sink._sink import AsyncSinkBase
from penstock.async_sink._state import BufferedRequestState
from penstock.async_sink._strategy import RateLimitingStrategy
from penstock.async_sink.errors import SinkOptionError
from penstock.aws import AwsOptions

StrategyFactory = Callable[[AsyncSinkConfig], RateLimitingStrategy]


def kinesis_strategy(config: AsyncSinkConfig) -> RateLimitingStrategy:
    """Each shard at its own pace, and congestion control after a slow start: see `paced_strategy`."""
    return paced_strategy(config)


class KinesisStreamsSink(AsyncSinkBase[KinesisRequestEntry, KinesisRequestEntry]):
    """Writes to a Kinesis data stream by PutRecords, at least once.

    Can be pickled: a Spark driver makes it, tasks make writers of it.

    Raises:
        SinkOptionError: not exactly one of stream name and stream ARN is given.
    """

    def __init__(
        self,
        aws: AwsOptions,
        stream_name: str | None = None,
        *,
        stream_arn: str | None = None,
        config: AsyncSinkConfig | None = None,
        strategy: StrategyFactory = kinesis_strategy,
    ) -> None:
        """Describe the stream. `strategy` makes the rate limiting strategy of each writer."""
        if (stream_name is None) == (stream_arn is None):
            raise SinkOptionError("stream_name", "give either a stream name or a stream ARN")
        self._aws = aws
        self._stream_name = stream_name
        self._stream_arn = stream_arn
        self._config = config or AsyncSinkConfig()
        self._strategy = strategy

    def create_writer(self) -> KinesisStreamsWriter:
        """A writer with an empty buffer, an own connection pool and an own rate limit."""
        return self.restore_writer(())

    def restore_writer(self, states: Iterable[BufferedRequestState[KinesisRequestEntry]]) -> KinesisStreamsWriter:
        """A writer that begins with what others left behind."""
        return KinesisStreamsWriter(
            self._aws,
            stream_name=self._stream_name,
            stream_arn=self._stream_arn,
            config=self._config,
            strategy=self._strategy(self._config),
            initial_states=states,
        )
