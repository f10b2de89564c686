"""Builds the record publisher that the configuration asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.aws import JsonClient
from penstock.efo_consumer._publish.diagnosis import KinesisDiagnosis
from penstock.efo_consumer._publish.fan_out import FanOutRecordPublisher
from penstock.efo_consumer._publish.polling import PollingRecordPublisher, PollingTools
from penstock.efo_consumer._publish.publisher import RecordPublisher, RecordPublisherType
from penstock.efo_consumer._wire.transport import open_transport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.aws import AwsSession
    from penstock.efo_consumer._publish.config import RecordPublisherConfig
    from penstock.efo_consumer._publish.metrics import PublisherMetrics


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
        """
        if config.record_publisher is RecordPublisherType.POLLING:
            tools = polling_tools or PollingTools.for_session(session, config)
            return PollingRecordPublisher(JsonClient(session), tools=tools, metrics=metrics)
        return FanOutRecordPublisher(
            open_transport(session, config),
            consumer_arns=consumer_arns or {},
            config=config,
            diagnosis=KinesisDiagnosis(JsonClient(session)),
            renew_credentials=session.renew_credentials,
            service_clock=session.service_clock(),
            metrics=metrics,
        )
