"""What DynamoDB adds to a store: a table on demand, lost answers, pages, throttling."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Self

import pytest
from registry_homes import known

from penstock.aws import AwsCalls, AwsConnectionError, AwsServiceError
from penstock.registration import ConsumerRecord, DynamoDbLeaseStore, Holding, Renewal
from penstock.registration.errors import LeaseStoreError
from penstock.registration.testing import DynamoDbClients


def new_record(consumer_name: str = "delays", **fields: Any) -> ConsumerRecord:
    return ConsumerRecord(stream_arn="flights", consumer_name=consumer_name, created_at=1.0, **fields)


class Meddling:
    """A client whose calls are counted, and answered or not as the test wants."""

    def __init__(self, endpoint_url: str) -> None:
        self.real: AwsCalls = DynamoDbClients(endpoint_url).aio_client("dynamodb")
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.before: dict[str, list[Exception]] = {}
        self.after: dict[str, list[Exception | Coroutine[Any, Any, Exception]]] = {}

    def aio_client(self, service_name: str) -> Self:
        assert service_name == "dynamodb"
        return self

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        self.calls.append((operation, parameters))
        if errors := self.before.get(operation):
            raise errors.pop()
        answer = await self.real.call(operation, **parameters)
        if later := self.after.get(operation):
            error = later.pop()
            raise await error if asyncio.iscoroutine(error) else error
        return answer

    async def close(self) -> None:
        await self.real.close()


async def at_once(_seconds: float) -> None:
    """A sleep for those who do not wait."""
    await asyncio.sleep(0)


@pytest.fixture
def meddling(dynamodb: str) -> Meddling:
    return Meddling(dynamodb)


@pytest.fixture
async def store(meddling: Meddling, dynamodb_table: str) -> AsyncIterator[DynamoDbLeaseStore]:
    opened = DynamoDbLeaseStore(meddling, dynamodb_table, sleep=at_once)
    yield opened
    await opened.close()


def service_error(code: str) -> AwsServiceError:
    return AwsServiceError(code=code, message="", status=400, operation="operation")


LOST = AwsConnectionError(operation="operation", endpoint="http://dynamodb", reason="lost")


async def test_the_table_is_made_on_demand_by_one_of_many(dynamodb: str, dynamodb_table: str) -> None:
    """Four replicas that start together find one table, which is billed per request."""
    stores = [DynamoDbLeaseStore(DynamoDbClients(dynamodb), dynamodb_table) for _ in range(4)]
    outcomes = await asyncio.gather(*(store.write(new_record()) for store in stores))
    assert sorted(outcomes) == [False] * 3 + [True]
    async with DynamoDbClients(dynamodb).aio_client("dynamodb") as client:
        table = (await client.call("describe_table", TableName=dynamodb_table))["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    for store in stores:
        await store.close()


async def test_a_write_whose_answer_was_lost_is_not_lost(store: DynamoDbLeaseStore, meddling: Meddling) -> None:
    """It was carried out; the second attempt is refused on its account, and knows its own hand."""
    meddling.after["put_item"] = [LOST]
    assert await store.write(new_record(fencing_token=1))
    assert [name for name, _ in meddling.calls].count("put_item") == 3  # one found no table
    assert known(await store.get("flights", "delays")).version == 1


async def test_throttling_is_waited_out(store: DynamoDbLeaseStore, meddling: Meddling) -> None:
    """With back-off, as for every call to AWS."""
    await store.write(new_record())
    meddling.before["get_item"] = [service_error("ProvisionedThroughputExceededException")] * 3
    assert known(await store.get("flights", "delays")).version == 1


async def test_a_list_reads_all_pages(store: DynamoDbLeaseStore, meddling: Meddling) -> None:
    """DynamoDB gives a megabyte at a time."""
    await asyncio.gather(*(store.write(new_record(f"consumer-{number:02}")) for number in range(25)))
    real = meddling.real

    class Paged:
        async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
            limit = {"Limit": 4} if operation == "scan" else {}
            return await real.call(operation, **parameters, **limit)

        async def close(self) -> None:
            await real.close()

    meddling.real = Paged()
    names = [f"consumer-{number:02}" for number in range(25)]
    assert [record.consumer_name for record in await store.list()] == names
    assert len([1 for name, _ in meddling.calls if name == "scan"]) > 5


@pytest.mark.parametrize("operation", ["get_item", "put_item", "scan", "update_item"])
async def test_what_dynamodb_refuses_is_an_error_of_the_store(
    store: DynamoDbLeaseStore, meddling: Meddling, operation: str
) -> None:
    """It names the table, and keeps DynamoDB's reason."""
    meddling.before[operation] = [service_error("AccessDeniedException")]
    renewal = Renewal(stream_arn="flights", consumer_name="delays", job_id="job", fencing_token=1, at=9.0)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "get_item": lambda: store.get("flights", "delays"),
        "put_item": lambda: store.write(new_record()),
        "scan": store.list,
        "update_item": lambda: store.renew(renewal),
    }
    with pytest.raises(LeaseStoreError, match=f"dynamodb://.*{operation}.*AccessDenied"):
        await calls[operation]()


async def test_a_write_whose_answer_was_lost_does_not_win_over_a_later_one(
    store: DynamoDbLeaseStore, meddling: Meddling, dynamodb: str, dynamodb_table: str
) -> None:
    """Another replica read what was written, and wrote after it: this one must read again."""
    await store.write(new_record())
    read = known(await store.get("flights", "delays"))

    async def overtaken() -> AwsConnectionError:
        key = meddling.calls[-1][1]["Item"]
        item = {**key, "version": {"N": "3"}, "write_id": {"S": "another's"}}
        await meddling.real.call("put_item", TableName=dynamodb_table, Item=item)
        return LOST

    meddling.after["put_item"] = [overtaken()]
    assert not await store.write(replace(read, fencing_token=5))


async def test_a_renewal_whose_answer_was_lost_is_made_again(store: DynamoDbLeaseStore, meddling: Meddling) -> None:
    """Renewing twice is renewing."""
    holding = Holding(job_id="job", fencing_token=1, acquired_at=1.0, renewed_at=1.0, time_to_live_seconds=30.0)
    await store.write(new_record(fencing_token=1, holding=holding))
    meddling.after["update_item"] = [LOST]
    renewal = Renewal(stream_arn="flights", consumer_name="delays", job_id="job", fencing_token=1, at=9.0)
    assert await store.renew(renewal) == 30.0


async def test_stored_items_keep_their_attribute_names(
    store: DynamoDbLeaseStore, meddling: Meddling, dynamodb_table: str
) -> None:
    await store.list()  # makes the table
    item = {
        "stream": {"S": "flights "},
        "consumer_name": {"S": "delays"},
        "namespace": {"S": ""},
        "stream_name": {"S": "flights"},
        "version": {"N": "5"},
        "write_id": {"S": "w"},
        "fencing_token": {"N": "7"},
        "created_at": {"N": "1.0"},
        "phase": {"S": "registered"},
        "consumer_arn": {"S": "arn:c"},
        "registration_is_ours": {"BOOL": True},
        "registering_token": {"N": "0"},
        "ended_token": {"N": "2"},
        "job_id": {"S": "job"},
        "holding_token": {"N": "7"},
        "acquired_at": {"N": "1795419231.0"},
        "renewed_at": {"N": "1795419232.5"},
        "time_to_live_seconds": {"N": "30.0"},
        "claim": {"S": "run/1"},
    }
    await meddling.call("put_item", TableName=dynamodb_table, Item=item)
    holding = Holding(
        job_id="job",
        fencing_token=7,
        acquired_at=1795419231.0,
        renewed_at=1795419232.5,
        time_to_live_seconds=30.0,
        claim="run/1",
    )
    registered: Any = {"phase": "registered", "consumer_arn": "arn:c", "registration_is_ours": True}
    record = new_record(version=5, fencing_token=7, ended_token=2, holding=holding, **registered)
    assert await store.get("flights", "delays") == record
    renewal = Renewal(stream_arn="flights", consumer_name="delays", job_id="job", fencing_token=7, at=1795419240.0)
    assert await store.renew(renewal) == 30.0
