"""An adaptive, rate-limited asynchronous sink: Kinesis and destinations of your own."""

from penstock.async_sink._batches import Batch, BatchCreator, BatchExtent
from penstock.async_sink._blocking import SinkSummary, write_batches
from penstock.async_sink._buffer import RequestBuffer
from penstock.async_sink._classifier import EVERYTHING_IS_FATAL, FatalExceptionClassifier
from penstock.async_sink._clock import Clock, LoopClock, Timer
from penstock.async_sink._config import AsyncSinkConfig
from penstock.async_sink._congestion import CongestionControlRateLimitingStrategy, ScalingTarget
from penstock.async_sink._converter import ElementConverter, WriteContext
from penstock.async_sink._defaults import aimd_strategy
from penstock.async_sink._entries import EntryFailure, EntryListener, RequestEntryWrapper
from penstock.async_sink._gateway._client import RemoteSink, RemoteWriter
from penstock.async_sink._kinesis._entry import KinesisRequestEntry
from penstock.async_sink._kinesis._sink import KinesisStreamsSink, kinesis_strategy
from penstock.async_sink._kinesis._state_codec import state_from_bytes, state_to_bytes
from penstock.async_sink._kinesis._writer import KinesisStreamsWriter
from penstock.async_sink._metrics import SinkMetrics
from penstock.async_sink._result import ResultHandler
from penstock.async_sink._scaling import AIMDScalingStrategy, NoOpScalingStrategy, ScalingStrategy
from penstock.async_sink._sink import AsyncSinkBase
from penstock.async_sink._state import BufferedRequestState
from penstock.async_sink._strategy import RateLimitingStrategy, RequestInfo, ResultInfo
from penstock.async_sink._writer import AsyncSinkWriter

__all__ = [
    "EVERYTHING_IS_FATAL",
    "AIMDScalingStrategy",
    "AsyncSinkBase",
    "AsyncSinkConfig",
    "AsyncSinkWriter",
    "Batch",
    "BatchCreator",
    "BatchExtent",
    "BufferedRequestState",
    "Clock",
    "CongestionControlRateLimitingStrategy",
    "ElementConverter",
    "EntryFailure",
    "EntryListener",
    "FatalExceptionClassifier",
    "KinesisRequestEntry",
    "KinesisStreamsSink",
    "KinesisStreamsWriter",
    "LoopClock",
    "NoOpScalingStrategy",
    "RateLimitingStrategy",
    "RemoteSink",
    "RemoteWriter",
    "RequestBuffer",
    "RequestEntryWrapper",
    "RequestInfo",
    "ResultHandler",
    "ResultInfo",
    "ScalingStrategy",
    "ScalingTarget",
    "SinkMetrics",
    "SinkSummary",
    "Timer",
    "WriteContext",
    "aimd_strategy",
    "kinesis_strategy",
    "state_from_bytes",
    "state_to_bytes",
    "write_batches",
]
