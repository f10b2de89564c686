"""Partial failures and error classes of all services, against a server that follows a script."""

import base64
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sink_scripted_service import Answer, Body, ScriptedService, success

from penstock.async_sink import (
    AsyncSinkConfig,
    CongestionControlRateLimitingStrategy,
    DynamoDbRequestEntry,
    DynamoDbSink,
    EntryFailure,
    FirehoseRequestEntry,
    FirehoseSink,
    KinesisRequestEntry,
    KinesisStreamsSink,
    Ordering,
    SqsRequestEntry,
    SqsSink,
    dynamodb_config,
    firehose_config,
    sqs_config,
)
from penstock.async_sink._destinations.dynamodb_items import attribute_value
from penstock.async_sink.errors import DestinationError, RecordsRejectedError
from penstock.aws.testing import emulator_options

QUICK: Any = {"retry_backoff_base": timedelta(milliseconds=1), "max_in_flight_requests": 1}


def firehose(service: ScriptedService, **options: Any) -> FirehoseSink[Any]:
    return FirehoseSink(emulator_options(service.url), "flights", config=firehose_config(**QUICK, **options))


def dynamodb(service: ScriptedService, **options: Any) -> DynamoDbSink[Any]:
    config = dynamodb_config(**QUICK, **options)
    return DynamoDbSink(emulator_options(service.url), "flights", key_names=["id"], config=config)


def sqs(service: ScriptedService, **options: Any) -> SqsSink[Any]:
    config = sqs_config(**QUICK, **options)
    return SqsSink(emulator_options(service.url), "https://sqs/1/flights", config=config)


def kinesis(service: ScriptedService) -> KinesisStreamsSink:
    return KinesisStreamsSink(emulator_options(service.url), "flights", config=AsyncSinkConfig(**QUICK))


ENTRIES: dict[Any, Callable[[int], Any]] = {
    kinesis: lambda number: KinesisRequestEntry(b"%d" % number, "k"),
    firehose: lambda number: FirehoseRequestEntry(b"%d" % number),
    dynamodb: lambda number: DynamoDbRequestEntry.put({"id": number}),
    sqs: lambda number: SqsRequestEntry(str(number)),
}


def fails(code: str, status: int, message: str = "as told") -> Callable[[Body], tuple[int, Body]]:
    return lambda body: (status, {"__type": f"com.amazon#{code}", "message": message})


@pytest.mark.parametrize(
    ("make", "entry", "code", "status", "throttled"),
    [
        (firehose, FirehoseRequestEntry(b"x"), "ServiceUnavailableException", 503, 1),
        (firehose, FirehoseRequestEntry(b"x"), "InternalFailure", 500, 0),
        (dynamodb, DynamoDbRequestEntry.put({"id": 1}), "ProvisionedThroughputExceededException", 400, 1),
        (dynamodb, DynamoDbRequestEntry.put({"id": 1}), "RequestLimitExceeded", 400, 1),
        (dynamodb, DynamoDbRequestEntry.put({"id": 1}), "InternalServerError", 500, 0),
        (dynamodb, DynamoDbRequestEntry.put({"id": 1}), "ReplicatedWriteConflictException", 400, 0),
        (sqs, SqsRequestEntry("x"), "RequestThrottled", 400, 1),
        (sqs, SqsRequestEntry("x"), "KmsThrottled", 400, 1),
        (sqs, SqsRequestEntry("x"), "InternalError", 500, 0),
    ],
)
async def test_errors_that_pass_are_tried_again(
    service: ScriptedService, make: Any, entry: Any, code: str, status: int, throttled: int
) -> None:
    """Each service's own codes; only its throttles count as such, and slow the writer down."""
    service.script = [fails(code, status)]
    async with make(service).create_writer() as writer:
        await writer.write(entry)
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.retried, writer.metrics.throttled) == (1, 1, throttled)


@pytest.mark.parametrize(
    ("make", "entry", "code"),
    [
        (firehose, FirehoseRequestEntry(b"x"), "InvalidKMSResourceException"),
        (firehose, FirehoseRequestEntry(b"x"), "ResourceNotFoundException"),
        (dynamodb, DynamoDbRequestEntry.put({"id": 1}), "ValidationException"),
        (dynamodb, DynamoDbRequestEntry.put({"id": 1}), "ItemCollectionSizeLimitExceededException"),
        (sqs, SqsRequestEntry("x"), "QueueDoesNotExist"),
        (sqs, SqsRequestEntry("x"), "AccessDeniedException"),
    ],
)
async def test_errors_that_stay_end_the_writer(service: ScriptedService, make: Any, entry: Any, code: str) -> None:
    """They are not retried forever: the error has code, destination and record, and the snapshot keeps the entry."""
    service.script = [fails(code, 400)] * 3
    writer = make(service).create_writer()
    async with writer:
        await writer.write(entry)
        with pytest.raises(DestinationError) as caught:
            await writer.flush(end_of_input=True)
        assert (caught.value.code, caught.value.destination) == (code, "flights")
        assert caught.value.first_record_number == 0
        ((kept, _),) = writer.snapshot_state()[0].entries
        assert kept == entry


@pytest.mark.parametrize(
    ("make", "answer", "words"),
    [
        (kinesis, {}, "UnreadableAnswer.*Records.*look at the endpoint"),
        (kinesis, {"hello": 1}, "Records"),
        (kinesis, {"FailedRecordCount": 0, "Records": [{"SequenceNumber": "1"}]}, "answered for 1"),
        (kinesis, {"FailedRecordCount": 0, "Records": []}, "answered for 0"),
        (kinesis, {"FailedRecordCount": 1, "Records": [{"SequenceNumber": "1"}] * 2}, "counts 1"),
        (firehose, {}, "RequestResponses"),
        (firehose, {"FailedPutCount": 0, "RequestResponses": []}, "answered for 0"),
        (firehose, {"FailedPutCount": 1, "RequestResponses": [{"ErrorCode": "InternalFailure"}]}, "answered for 1"),
        (firehose, {"FailedPutCount": 2, "RequestResponses": [{"RecordId": "r"}] * 2}, "counts 2"),
        (dynamodb, {}, "UnprocessedItems"),
        (dynamodb, {"hello": 1}, "UnprocessedItems"),
        (sqs, {}, "answered for 0"),
        (sqs, {"Successful": [{"Id": "0"}]}, "answered for 1"),
    ],
)
async def test_an_answer_without_each_entry_is_not_a_success(
    service: ScriptedService, make: Any, answer: Body, words: str
) -> None:
    """Entries that the answer does not mention are not treated as written."""
    service.script = [lambda body: (200, answer)]
    async with make(service).create_writer() as writer:
        await writer.write_many([ENTRIES[make](number) for number in range(2)])
        with pytest.raises(DestinationError, match=words):
            await writer.flush(end_of_input=True)


@pytest.mark.parametrize("count", [None, 0])
@pytest.mark.parametrize(
    ("make", "counted", "results"),
    [(kinesis, "FailedRecordCount", "Records"), (firehose, "FailedPutCount", "RequestResponses")],
)
async def test_failures_that_are_not_counted_are_sent_again(
    service: ScriptedService, make: Any, counted: str, results: str, count: int | None
) -> None:
    """The results decide if their count is missing or wrong."""
    failed: Body = {results: [{"SequenceNumber": "1", "RecordId": "1"}, {"ErrorCode": "InternalFailure"}]}
    service.script = [lambda body: (200, failed if count is None else {counted: count, **failed})]
    async with make(service).create_writer() as writer:
        await writer.write_many([ENTRIES[make](number) for number in range(2)])
        await writer.flush(end_of_input=True)
        assert (writer.metrics.records_out, writer.metrics.retried) == (2, 1)
    assert len(service.requests[1]["Records"]) == 1


def unprocessed(*ids: str) -> Answer:
    def answer(body: Body) -> tuple[int, Body]:
        (writes,) = body["RequestItems"].values()
        left = [
            write
            for write in writes
            if (write.get("PutRequest", {}).get("Item") or write["DeleteRequest"]["Key"])["id"]["S"] in ids
        ]
        return 200, {"UnprocessedItems": {"flights": left} if left else {}}

    return answer


def ids_of(request: Body) -> list[str]:
    (writes,) = request["RequestItems"].values()
    return [(write.get("PutRequest", {}).get("Item") or write["DeleteRequest"]["Key"])["id"]["S"] for write in writes]


async def test_an_unknown_unprocessed_item_has_all_sent_again(service: ScriptedService) -> None:
    """A write can be done twice; it must not be left out."""
    stranger = {"UnprocessedItems": {"flights": [{"PutRequest": {"Item": {"id": {"S": "z"}}}}]}}
    service.script = [lambda body: (200, stranger)]
    async with dynamodb(service).create_writer() as writer:
        await writer.write_many(DynamoDbRequestEntry.put({"id": each}) for each in "ab")
        await writer.flush(end_of_input=True)
    assert [ids_of(request) for request in service.requests] == [["a", "b"], ["a", "b"]]


async def test_a_later_write_of_an_item_waits_for_the_one_that_failed(service: ScriptedService) -> None:
    """Else the older value would be written over the newer one."""
    service.script = [unprocessed("a")]
    async with dynamodb(service).create_writer() as writer:
        for version, key in enumerate("aba"):
            await writer.write(DynamoDbRequestEntry.put({"id": key, "version": version}))
        await writer.flush(end_of_input=True)
    assert [ids_of(request) for request in service.requests] == [["a", "b"], ["a"], ["a"]]
    versions = [
        [write["PutRequest"]["Item"]["version"]["N"] for write in request["RequestItems"]["flights"]]
        for request in service.requests
    ]
    assert versions == [["0", "1"], ["0"], ["2"]]


async def test_a_poison_item_costs_only_the_entries_of_its_own_request(service: ScriptedService) -> None:
    """The second version of an item leaves in a request of its own; its refusal does not send the first one again."""
    written: list[str] = []

    def answer(body: Body) -> tuple[int, Body]:
        versions = [write["PutRequest"]["Item"]["version"]["N"] for write in body["RequestItems"]["flights"]]
        if "2" in versions:
            return fails("ValidationException", 400)(body)
        written.extend(versions)
        return 200, {"UnprocessedItems": {}}

    service.script = [answer] * 10
    listener = Listener()
    async with dynamodb(service).create_writer() as writer:
        items = [DynamoDbRequestEntry.put({"id": key, "version": version}) for version, key in enumerate("abac")]
        await writer.write_many(items, listener=listener)
        await writer.flush(end_of_input=True)
    assert sorted(written) == ["0", "1", "3"]
    assert (sorted(listener.accepted), listener.refused) == ([0, 1, 3], [(2, "ValidationException")])


@pytest.mark.parametrize(
    "bad",
    [float("inf"), set(), {1, "a"}, object(), 10**39 + 1, 1e200, 10**126, Decimal("-1E-131"), Decimal("1E+9999999")],
)
def test_values_that_dynamodb_does_not_have_are_refused(bad: Any) -> None:
    """Before they are sent."""
    with pytest.raises(ValueError, match=r"DynamoDB|digits|kind"):
        attribute_value(bad)


async def test_sqs_does_not_retry_a_senders_fault(service: ScriptedService) -> None:
    """It is not sent again; failures of the service are."""

    def answer(body: Body) -> tuple[int, Body]:
        return 200, {
            "Successful": [{"Id": "0"}],
            "Failed": [
                {"Id": "2", "SenderFault": False, "Code": "InternalError", "Message": "later"},
                {"Id": "1", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "bad"},
                {"Id": "3", "SenderFault": True, "Code": "RequestThrottled", "Message": "slower"},
            ],
        }

    service.script = [answer]
    writer = sqs(service).create_writer()
    async with writer:
        await writer.write_many(SqsRequestEntry(str(number)) for number in range(4))
        with pytest.raises(RecordsRejectedError) as caught:
            await writer.flush(end_of_input=True)
        (record,) = caught.value.records
        assert (record.record_number, record.error_code, record.error_message) == (1, "InvalidMessageContents", "bad")
        assert [entry.body for entry, _ in writer.snapshot_state()[0].entries] == ["1", "2", "3"]
        assert writer.metrics.throttled == 1
    assert service.requests[0]["QueueUrl"] == "https://sqs/1/flights"


@pytest.mark.parametrize("make", [firehose, dynamodb, sqs])
def test_each_destination_starts_with_one_batch_in_flight(make: Any) -> None:
    """The limit doubles from there until the first throttle, because the capacity of the destination is unknown."""
    service = ScriptedService()
    service.url = "http://127.0.0.1:1"
    strategy = make(service).create_writer().strategy
    assert isinstance(strategy, CongestionControlRateLimitingStrategy)
    config: AsyncSinkConfig = make(service).create_writer().config
    assert strategy.limit == config.max_batch_size


async def test_an_order_per_key_is_that_of_items_and_groups(service: ScriptedService) -> None:
    """Writes of an item, and messages of a group, are in flight one at a time; what has no key has no order."""
    table = dynamodb(service).create_writer()
    first, same = (DynamoDbRequestEntry.put({"id": 1, "version": version}) for version in (1, 2))
    assert table.get_order_key(first) == table.get_order_key(same)
    assert table.get_order_key(first) != table.get_order_key(DynamoDbRequestEntry.put({"id": 2}))
    queue = sqs(service).create_writer()
    assert queue.get_order_key(SqsRequestEntry("a", group_id="g")) == "g"
    assert queue.get_order_key(SqsRequestEntry("a")) is None
    assert firehose(service).create_writer().get_order_key(FirehoseRequestEntry(b"x")) is None
    service.script = [unprocessed("a")]
    async with dynamodb(service, ordering=Ordering.PER_KEY).create_writer() as writer:
        for version, key in enumerate("aba"):
            await writer.write(DynamoDbRequestEntry.put({"id": key, "version": version}))
    assert [ids_of(request).count("a") for request in service.requests] == [1, 1, 1]


class Listener:
    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.refused: list[tuple[int, str]] = []

    def acknowledged(self, entry_index: int, attempts: int) -> None:
        self.accepted.append(entry_index)

    def rejected(self, entry_index: int, attempts: int, failure: EntryFailure) -> None:
        self.refused.append((entry_index, failure.error_code))

    def abandoned(self, error: BaseException) -> None:
        """The writer's caller gets the error too."""


@pytest.mark.parametrize(
    ("make", "of", "target", "code"),
    [
        (firehose, lambda text: FirehoseRequestEntry(text.encode()), "PutRecordBatch", "InvalidArgumentException"),
        (dynamodb, lambda text: DynamoDbRequestEntry.put({"id": text}), "BatchWriteItem", "ValidationException"),
        (sqs, SqsRequestEntry, "SendMessageBatch", "MissingParameter"),
    ],
)
async def test_a_listener_learns_of_the_entry_that_spoils_a_request(
    service: ScriptedService, make: Any, of: Any, target: str, code: str
) -> None:
    """The others are written, and the writer continues without a handler for abandoned records."""

    def answer(body: Body) -> tuple[int, Body]:
        bad = any(bad in str(body) for bad in ("'bad'", base64.b64encode(b"bad").decode()))
        return fails(code, 400)(body) if bad else success(f"x.{target}")(body)

    service.script = [answer] * 20
    listener = Listener()
    async with make(service).create_writer() as writer:
        await writer.write_many(list(map(of, ("a", "b", "bad", "c"))), listener=listener)
        await writer.flush(end_of_input=True)
        await writer.write(of("d"))
    assert sorted(listener.accepted) == [0, 1, 3]
    assert listener.refused == [(2, code)]
    assert writer.metrics.records_out == 4
