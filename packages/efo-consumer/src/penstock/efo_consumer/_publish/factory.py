"""Builds the record publisher that the configuration asks for, and what carries its subscriptions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.aws import AwsSession
from penstock.efo_consumer._publish.config import RecordPublisherConfig, SubscribeTransportType
from penstock.efo_consumer._publish.diagnosis import KinesisDiagnosis
from penstock.efo_consumer._publish.dynamodb_streams import stream_client
from penstock.efo_consumer._publish.fan_out import FanOutRecordPublisher
from penstock.efo_consumer._publish.polling import PollingRecordPublisher, PollingTools
from penstock.efo_consumer._publish.publisher import RecordPublisher, RecordPublisherType
from penstock.efo_consumer._wire.http2 import Http2Transport
from penstock.efo_consumer.errors import EfoConsumerConfigError, Http2NotNegotiatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.efo_consumer._publish.metrics import PublisherMetrics
    from penstock.efo_consumer._wire.subscription import SubscribeRequest, SubscribeTransport, Subscription

_log = logging.getLogger(__name__)


class RecordPublisherFactory:
    """FLIP-128's factory: one entrance to both record publishers."""

    def build_record_publisher(
        self,
        config: RecordPublisherConfig,
        session: AwsSession,
        consumer_arns: Mapping[str, str] | None = None,
        *,
        metrics: PublisherMetrics | None = None,
        polling_tools: PollingTools | None = None,
    ) -> RecordPublisher:
        """A publisher that owns its connections: close it. Bound to the event loop that first uses it.

        Args:
            config: which publisher, and how it works.
            session: credentials, region and endpoint.
            consumer_arns: the stream consumer's ARN per stream name; for enhanced fan-out.
            metrics: instruments; the global meter's by default.
            polling_tools: pace and clock; by default the pace of this process, which all its readers share.

        Raises:
            EfoConsumerConfigError: the options contradict each other.
            AwsOptionError: `session` is not an `AwsSession`.
        """
        AwsSession.of(session)
        if config.record_publisher is RecordPublisherType.POLLING:
            tools = polling_tools or PollingTools.for_session(session, config)
            return PollingRecordPublisher(stream_client(session), tools=tools, metrics=metrics)
        return FanOutRecordPublisher(
            open_transport(session, config),
            consumer_arns=consumer_arns or {},
            config=config,
            diagnosis=KinesisDiagnosis(stream_client(session)),
            renew_credentials=session.renew_credentials,
            service_clock=session.service_clock(),
            metrics=metrics,
        )


class FallbackTransport:
    """HTTP/2 until the endpoint turns out not to have it; HTTP/1.1 from then on.

    Args:
        first: the HTTP/2 transport.
        fall_back: makes the HTTP/1.1 transport when it is needed.
    """

    def __init__(self, first: SubscribeTransport, fall_back: Callable[[], SubscribeTransport]) -> None:
        self._first = first
        self._fall_back = fall_back
        self._second: SubscribeTransport | None = None

    @property
    def name(self) -> str:
        """The name of the transport in use."""
        return (self._second or self._first).name

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        """See `SubscribeTransport.subscribe`."""
        if self._second is None:
            try:
                return await self._first.subscribe(request)
            except Http2NotNegotiatedError as error:
                # Subscriptions that were under way together fall back one after the other.
                if self._second is None:
                    self._second = self._fall_back()
                    _log.info("%s: falling back to %s", error, self._second.name)
        return await self._second.subscribe(request)

    async def close(self) -> None:
        """See `SubscribeTransport.close`."""
        await self._first.close()
        if self._second is not None:
            await self._second.close()


def open_transport(session: AwsSession, config: RecordPublisherConfig) -> SubscribeTransport:
    """The transport that the configuration asks for; it connects when it is first used.

    Raises:
        EfoConsumerConfigError: HTTP/2 is asked for, and the endpoint is plain http.
    """
    is_https = session.endpoint_url("kinesis").startswith("https:")
    kind = config.subscribe_transport
    if kind is SubscribeTransportType.HTTP2 and not is_https:
        raise EfoConsumerConfigError(
            option="subscribeTransport", reason="http2 needs an https endpoint: give one, or use auto or http1"
        )
    window_bytes, connect_timeout = config.subscription_window_bytes, config.connect_timeout

    def http1() -> SubscribeTransport:
        # aiohttp is loaded only where it is used: HTTP/2 is the rule.
        from penstock.efo_consumer._wire.http1 import Http1Transport

        return Http1Transport(session, window_bytes=window_bytes, connect_timeout=connect_timeout)

    if kind is SubscribeTransportType.HTTP1 or not is_https:
        return http1()
    http2 = Http2Transport(session, window_bytes=window_bytes, connect_timeout=connect_timeout)
    return http2 if kind is SubscribeTransportType.HTTP2 else FallbackTransport(http2, http1)
