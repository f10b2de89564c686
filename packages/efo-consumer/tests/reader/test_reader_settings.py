"""What a caller says of its session reaches a reader behind an endpoint, and acts there."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import AwsSession, BackoffPolicy
from penstock.aws.testing import emulator_options
from penstock.efo_consumer import (
    SERVICE_NAME,
    EfoConsumerConfigError,
    KinesisBackend,
    LocalShardReader,
    OpenRequest,
    ReaderConfig,
    RecordPublisherType,
    RemoteShardReader,
    SessionSettings,
    ShardReaderServicer,
    StreamPositions,
    SubscribeTransportType,
    resolve_initial_positions,
)
from penstock.efo_consumer._remote.client import MESSAGES
from penstock.emulator.testing import running_emulator
from penstock.proto.shard_reader.v1 import shard_reader_pb2 as pb
from penstock.rpc import GrpcServer, ServerSettings

SECONDS = st.integers(0, 10_000).map(lambda millis: timedelta(milliseconds=millis))
BACKOFFS = st.builds(
    lambda base, more, exponent, attempts: BackoffPolicy(
        base=base, maximum=base + more, exponent=exponent, max_attempts=attempts
    ),
    SECONDS,
    SECONDS,
    st.floats(1, 10),
    st.none() | st.integers(1, 2**40),
)
SETTINGS = st.builds(
    SessionSettings,
    subscribe_to_shard=st.none() | BACKOFFS,
    get_records=st.none() | BACKOFFS,
    get_shard_iterator=st.none() | BACKOFFS,
    get_records_max_records=st.none() | st.integers(1, 10_000),
    get_records_interval=st.none() | st.integers(200, 10_000).map(lambda millis: timedelta(milliseconds=millis)),
    subscribe_transport=st.none() | st.sampled_from(SubscribeTransportType),
    connect_timeout=st.none() | st.integers(1, 100).map(lambda seconds: timedelta(seconds=seconds)),
    discovery_interval=st.none() | st.integers(1, 100).map(lambda seconds: timedelta(seconds=seconds)),
    idle_offset_interval=st.none() | SECONDS,
)


@given(SETTINGS)
def test_settings_cross_the_wire_whole(settings: SessionSettings) -> None:
    """What is not given stays the reader's own; what is false or zero is given."""
    request = OpenRequest(session_id="q", positions=StreamPositions({"s": {}}), settings=settings)
    message = pb.OpenRequest.FromString(MESSAGES.to(pb.OpenRequest, request).SerializeToString())
    assert MESSAGES.of(OpenRequest, message).settings == settings


def test_settings_out_of_range_are_named() -> None:
    """As they are made, and as they come."""
    with pytest.raises(EfoConsumerConfigError, match="get_records_interval"):
        SessionSettings(get_records_interval=timedelta(milliseconds=100))
    message = MESSAGES.to(pb.OpenRequest, OpenRequest(session_id="q", positions=StreamPositions({})))
    message.settings.get_records.base_seconds = 2.0
    with pytest.raises(EfoConsumerConfigError, match="settings"):
        MESSAGES.of(OpenRequest, message)


async def test_a_session_reads_as_its_caller_said() -> None:
    """Another session of the same reader, and the reader's own settings, stay as they were."""
    with running_emulator(shards_per_account=None) as emulator:
        client = emulator.client()
        client.create_stream(StreamName="orders", ShardCount=1)
        client.get_waiter("stream_exists").wait(StreamName="orders", WaiterConfig={"Delay": 1})
        session = AwsSession(emulator_options(emulator.endpoint_url))
        backend = KinesisBackend(session)
        reader = LocalShardReader(backend, ReaderConfig())
        async with (
            reader,
            GrpcServer(
                ServerSettings(), register=[ShardReaderServicer(reader).add_to], service_names=[SERVICE_NAME]
            ) as server,
        ):
            remote = RemoteShardReader(server.address)
            positions = await asyncio.to_thread(resolve_initial_positions, session, ["orders"], "TRIM_HORIZON")
            request = OpenRequest(session_id="own", positions=positions, record_publisher=RecordPublisherType.POLLING)
            given_settings = SessionSettings(
                get_records_max_records=7,
                get_records=BackoffPolicy(max_attempts=3),
                idle_offset_interval=timedelta(seconds=3),
                discovery_interval=timedelta(seconds=4),
            )
            await remote.open(request)
            await remote.open(replace(request, session_id="other", settings=given_settings))
            own, other = (reader._sessions[name] for name in ("own", "other"))
            assert own.followed.backend is backend
            config = other.followed.backend._config  # type: ignore[attr-defined]  # of Kinesis
            assert (config.get_records_max_records, config.get_records.max_attempts) == (7, 3)
            assert config.get_shard_iterator == backend._config.get_shard_iterator
            assert (other.config.idle_offset_interval, other.followed._config.discovery_interval) == (
                timedelta(seconds=3),
                timedelta(seconds=4),
            )
            assert own.config == ReaderConfig()
            await remote.aclose()
