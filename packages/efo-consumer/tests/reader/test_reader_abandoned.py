"""Only sessions without calls are ended; on a loop whose time is moved."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from fleet_in_memory import SkippingLoop

from penstock.efo_consumer import LocalShardReader, OpenRequest, ReaderConfig, RecordPublisher, RecordPublisherType
from penstock.efo_consumer.testing import FakeKinesis


class SlowToClose(FakeKinesis):
    """Its first publisher takes its time to close."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closing, self.may_close = asyncio.Event(), asyncio.Event()
        self._made = 0

    def record_publisher(
        self, record_publisher: RecordPublisherType, consumer_arns: Mapping[str, str]
    ) -> RecordPublisher:
        publisher = super().record_publisher(record_publisher, consumer_arns)
        self._made += 1
        if self._made == 1:

            async def close() -> None:
                self.is_closing.set()
                await self.may_close.wait()

            publisher.close = close  # type: ignore[method-assign]  # of this one
        return publisher


def test_a_session_that_is_opened_again_while_another_one_is_ended_stays() -> None:
    """Both were due; the end of the first takes a while, in which the caller of the second comes back."""
    loop = SkippingLoop()

    async def run() -> None:
        kinesis = SlowToClose()
        kinesis.create_stream("s")
        start = kinesis.trim_horizon("s")
        config = ReaderConfig(session_timeout=timedelta(seconds=10))
        async with asyncio.timeout(120), LocalShardReader(kinesis, config, clock=loop.time) as reader:
            for name in ("first", "second"):
                await reader.open(OpenRequest(session_id=name, positions=start))
            await kinesis.is_closing.wait()
            epoch = await reader.open(OpenRequest(session_id="second", positions=start))
            kinesis.may_close.set()
            await asyncio.sleep(5)
            assert [session.session_id for session in await reader.sessions()] == ["second"]
            await reader.commit("second", epoch, start)
            await asyncio.sleep(12)
            assert await reader.sessions() == []

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
