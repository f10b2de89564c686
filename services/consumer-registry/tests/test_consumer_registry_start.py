"""What a registry does when its store fails just after it has started."""

import asyncio
import builtins
from datetime import timedelta

import pytest

from penstock.registration import ConsumerRecord, LocalConsumerRegistry, StreamConsumerRegistrar
from penstock.registration.errors import LeaseStoreError
from penstock.registration.testing import FakeKinesis, InMemoryLeaseStore
from penstock.services.consumer_registry._serve import _tidy


class FailingStore(InMemoryLeaseStore):
    """Cannot be read at first."""

    fails = True

    async def list(self) -> builtins.list[ConsumerRecord]:
        if self.fails:
            self.fails = False
            raise LeaseStoreError(store="memory", reason="throttled")
        return await super().list()


async def test_a_store_that_fails_at_the_start_does_not_end_the_service(caplog: pytest.LogCaptureFixture) -> None:
    """The sweep, which keeps running, finishes what a predecessor began."""
    swept = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        swept.set()
        await asyncio.Event().wait()

    registry = LocalConsumerRegistry(StreamConsumerRegistrar(FakeKinesis()), FailingStore(), sleep=sleep)
    tidying = asyncio.create_task(_tidy(registry, timedelta(seconds=1)))
    waiting = asyncio.create_task(swept.wait())
    await asyncio.wait({tidying, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert swept.is_set(), tidying.exception()
    assert "throttled" in caplog.text
    tidying.cancel()
    await asyncio.wait({tidying})
    await registry.close()
