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
from penstock.async_sink._dynamodb._attributes import attribute_value
from penstock.async_sink._dynamodb._entry import DynamoDbRequestEntry
from penstock.async_sink._dynamodb._sink import DynamoDbSink, dynamodb_config, dynamodb_strategy
from penstock.async_sink._dynamodb._writer import DynamoDbWriter
from penstock.async_sink._entries import EntryFailure, EntryListener, RequestEntryWrapper
from penstock.async_sink._firehose._sink import FirehoseSink, firehose_config, firehose_strategy
from penstock.async_sink._firehose._writer import FirehoseRequestEntry, FirehoseWriter
from penstock.async_sink._gateway._client import RemoteSink, RemoteWriter
from penstock.async_sink._kinesis._entry import KinesisRequestEntry
from penstock.async_sink._kinesis._sink import KinesisStreamsSink, kinesis_strategy
from penstock.async_sink._kinesis._state_codec import state_from_bytes, state_to_bytes
from penstock.async_sink._kinesis._writer import KinesisStreamsWriter
from penstock.async_sink._metrics import SinkMetrics
from penstock.async_sink._result import ResultHandler
from penstock.async_sink._scaling import AIMDScalingStrategy, NoOpScalingStrategy, ScalingStrategy
from penstock.async_sink._sink import AsyncSinkBase
from penstock.async_sink._sqs._entry import SqsRequestEntry
from penstock.async_sink._sqs._sink import SqsSink, sqs_config, sqs_strategy
from penstock.async_sink._sqs._writer import SqsWriter
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
    "DynamoDbRequestEntry",
    "DynamoDbSink",
    "DynamoDbWriter",
    "ElementConverter",
    "EntryFailure",
    "EntryListener",
    "FatalExceptionClassifier",
    "FirehoseRequestEntry",
    "FirehoseSink",
    "FirehoseWriter",
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
    "SqsRequestEntry",
    "SqsSink",
    "SqsWriter",
    "Timer",
    "WriteContext",
    "aimd_strategy",
    "attribute_value",
    "dynamodb_config",
    "dynamodb_strategy",
    "firehose_config",
    "firehose_strategy",
    "kinesis_strategy",
    "sqs_config",
    "sqs_strategy",
    "state_from_bytes",
    "state_to_bytes",
    "write_batches",
]
