"""May these credentials do with a stream what a query does? Tried by calls that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.cli._doctor._aws import INSTALL, AwsMissingError, open_session
from penstock.cli._doctor._surroundings import Finding, Surroundings, ok, problem, skipped, warning

if TYPE_CHECKING:
    from penstock.aws import AwsSession

DRY_RUN: Final = "DryRunOperationException"
"""The answer to a dry run that would have been allowed."""
_DENIED: Final = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation", "NotAuthorized"})
_EXPIRED: Final = frozenset({"ExpiredTokenException", "ExpiredToken", "RequestExpired"})
_UNKNOWN_KEY: Final = frozenset(
    {"UnrecognizedClientException", "InvalidClientTokenId", "MissingAuthenticationTokenException"}
)
_SIGNATURE: Final = frozenset({"InvalidSignatureException", "SignatureDoesNotMatch", "IncompleteSignatureException"})
_BUSY: Final = frozenset({"LimitExceededException", "ProvisionedThroughputExceededException", "ThrottlingException"})
_KEY: Final = "penstock-doctor"


def check_stream(surroundings: Surroundings) -> Iterator[Finding]:
    """The actions that reading and writing need, one line each."""
    if surroundings.stream is None:
        yield skipped("IAM", "no stream is named", "give --stream NAME, and --consumer NAME for enhanced fan-out")
        return
    try:
        session = open_session(surroundings)
        session.frozen_credentials()
        calls = _Calls(session, surroundings.stream)
    except Exception as error:
        # The checks of AWS say more, where they are asked for; botocore has a dozen ways to have no credentials.
        yield _not_tried(error)
        return
    yield from calls.all(surroundings)


def _not_tried(error: Exception) -> Finding:
    if isinstance(error, ImportError) or (isinstance(error, AwsMissingError) and not error.option):
        return skipped("IAM", str(error), INSTALL)
    from penstock.aws import AwsError

    has_words = isinstance(error, AwsMissingError | AwsError)
    why = str(error) if has_words else f"there are no credentials: {type(error).__name__}"
    return problem("IAM", f"nothing can be tried: {why}", "see Region, Credentials and Endpoint (--only aws)")


class _Calls:
    """Calls about one stream. A call that fails in a way that others share ends them."""

    def __init__(self, session: AwsSession, stream: str) -> None:
        self._client: Any = session.client("kinesis")
        self._session = session
        self._stream = stream
        self._ended = False

    def all(self, surroundings: Surroundings) -> Iterator[Finding]:
        client, stream = self._client, self._stream
        summary, finding = self._call(
            "DescribeStreamSummary", lambda: client.describe_stream_summary(StreamName=stream)
        )
        if summary is None:
            yield finding
        else:
            yield self._described(summary["StreamDescriptionSummary"])
        if self._ended:
            return
        shards, finding = self._call("ListShards", lambda: client.list_shards(StreamName=stream, MaxResults=1))
        yield finding
        shard = shards["Shards"][0]["ShardId"] if shards and shards["Shards"] else None
        if shard is not None:
            yield from self._polling(shard)
        elif shards is None:
            yield skipped("GetShardIterator", "no shard is known without ListShards; GetRecords neither")
        arn = summary["StreamDescriptionSummary"]["StreamARN"] if summary else None
        yield from self._fan_out(surroundings.consumer, arn, shard)
        yield from self._writing(surroundings)

    def _described(self, summary: dict[str, Any]) -> Finding:
        status, count = summary["StreamStatus"], summary["OpenShardCount"]
        text = f"{self._stream} is {status}, {count} open shard{'' if count == 1 else 's'}"
        if status in ("ACTIVE", "UPDATING"):
            return ok("DescribeStreamSummary", text)
        return problem("DescribeStreamSummary", text, "wait until it is ACTIVE, or name another")

    def _polling(self, shard: str) -> Iterator[Finding]:
        client = self._client
        iterator, finding = self._call(
            "GetShardIterator",
            lambda: client.get_shard_iterator(StreamName=self._stream, ShardId=shard, ShardIteratorType="LATEST"),
        )
        yield finding
        if iterator is not None:
            get = {"ShardIterator": iterator["ShardIterator"], "Limit": 1}
            yield self._call("GetRecords", lambda: client.get_records(**get))[1]

    def _fan_out(self, consumer: str | None, arn: str | None, shard: str | None) -> Iterator[Finding]:
        client = self._client
        if arn is None:
            text = "the stream's ARN is not known without DescribeStreamSummary; SubscribeToShard neither"
            yield skipped("ListStreamConsumers", text)
            return
        _, finding = self._call("ListStreamConsumers", lambda: client.list_stream_consumers(StreamARN=arn))
        yield finding
        text = "cannot be tried without a registration, which costs"
        yield skipped("RegisterStreamConsumer", text, "see that the policy has it, and DeregisterStreamConsumer")
        if consumer is None:
            yield skipped("SubscribeToShard", "no consumer is named", "give --consumer NAME of a registered one")
            return
        described, finding = self._call(
            "DescribeStreamConsumer",
            lambda: client.describe_stream_consumer(StreamARN=arn, ConsumerName=consumer),
            self._consumer(consumer),
        )
        if described is None:
            yield finding
            return
        found = described["ConsumerDescription"]
        yield ok("DescribeStreamConsumer", f"{consumer} is {found['ConsumerStatus']}")
        if shard is None:
            yield skipped("SubscribeToShard", "no shard is known without ListShards")
        else:
            yield self._subscribe(found["ConsumerARN"], shard, self._consumer(consumer))

    def _consumer(self, consumer: str) -> str:
        # As IAM has it: a resource of its own, with a number of its registration behind it.
        return f"consumer {consumer} of {self._stream}, that is …:stream/{self._stream}/consumer/*"

    def _subscribe(self, consumer_arn: str, shard: str, resource: str) -> Finding:
        if not self._has_dry_run("SubscribeToShard"):
            return skipped("SubscribeToShard", "the installed botocore knows no dry run of it", "pip install -U boto3")
        start = {"Type": "LATEST"}
        answer, finding = self._call(
            "SubscribeToShard",
            lambda: self._client.subscribe_to_shard(
                ConsumerARN=consumer_arn, ShardId=shard, StartingPosition=start, DryRun=True
            ),
            resource,
        )
        if answer is not None and "EventStream" in answer:
            # A service that does not know dry runs has subscribed.
            answer["EventStream"].close()
        return finding

    def _writing(self, surroundings: Surroundings) -> Iterator[Finding]:
        record = {"Data": b"written by penstock doctor --write", "PartitionKey": _KEY}
        put = {"StreamName": self._stream, "Records": [record]}
        if surroundings.write:
            answer, finding = self._call("PutRecords", lambda: self._client.put_records(**put))
            if answer is not None and answer["FailedRecordCount"]:
                code = answer["Records"][0].get("ErrorCode", "")
                finding = explain("PutRecords", code, "", self._resource)
            yield finding
        elif self._is_aws() and self._has_dry_run("PutRecords"):
            yield self._call("PutRecords", lambda: self._client.put_records(**put, DryRun=True))[1]
        else:
            # An endpoint that does not know the flag would write.
            yield skipped("PutRecords", "cannot be tried here without writing", f"--write puts one record, key {_KEY}")

    @property
    def _resource(self) -> str:
        return f"stream {self._stream} in {self._session.region}"

    def _is_aws(self) -> bool:
        host = urlsplit(self._session.endpoint_url()).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))

    def _has_dry_run(self, operation: str) -> bool:
        return "DryRun" in self._client.meta.service_model.operation_model(operation).input_shape.members

    def _call(self, action: str, call: Callable[[], Any], resource: str = "") -> tuple[Any, Finding]:
        """The answer, or None, and what it means."""
        from botocore.exceptions import BotoCoreError, ClientError

        from penstock.aws import AwsError

        try:
            return call(), ok(action, "allowed")
        except ClientError as error:
            code, message = error.response["Error"].get("Code", ""), error.response["Error"].get("Message", "")
            finding = explain(action, code, message, resource or self._resource)
            self._ended |= code in _EXPIRED | _UNKNOWN_KEY | _SIGNATURE
            self._ended |= code == "ResourceNotFoundException" and action == "DescribeStreamSummary"
            return None, finding
        except (BotoCoreError, AwsError) as error:
            self._ended = True
            return None, problem(action, f"no answer: {error}", "see the endpoint above")


def _allowed_on(resource: str) -> str:
    kind, _, rest = resource.partition(" ")
    _, _, pattern = rest.partition(", that is ")
    return f"the {kind}, {pattern}" if pattern else f"the {kind}"


def _signature_cure(message: str) -> str:
    if "expired" in message or "not yet current" in message:
        return "set this machine's clock (timedatectl set-ntp true; in a container or virtual machine, on its host)"
    if "valid region" in message:
        return "correct the region (--region, AWS_REGION): the endpoint is of another one"
    return "correct AWS_SECRET_ACCESS_KEY, or the profile's secret: it does not belong to this access key"


def explain(action: str, code: str, message: str, resource: str) -> Finding:
    """What an error code of the service means for a query, and the cure."""
    if code == DRY_RUN:
        return ok(action, "allowed (dry run)")
    if code in _DENIED:
        return problem(action, "it is denied", f"allow kinesis:{action} on {_allowed_on(resource)}: {message}"[:400])
    if code in _EXPIRED:
        return problem(action, "the credentials are expired", "log in again (aws sso login), or fetch new keys")
    if code in _UNKNOWN_KEY:
        return problem(
            action,
            "AWS does not know this access key",
            "correct AWS_ACCESS_KEY_ID; temporary keys need AWS_SESSION_TOKEN",
        )
    if code in _SIGNATURE:
        return problem(action, f"the signature is refused: {message}"[:300], _signature_cure(message))
    if code == "ResourceNotFoundException":
        return problem(
            action, f"{resource.partition(', that')[0]} does not exist", "correct its name, the region, or the account"
        )
    if code in _BUSY:
        return warning(action, "allowed, but throttled just now", "somebody calls it as often as the limit allows")
    if code.startswith("KMS"):
        return problem(
            action, f"{code}: {message}"[:300], "allow kms:Decrypt (and GenerateDataKey to write) on the stream's key"
        )
    return problem(action, f"{code}: {message}"[:300], "see the service's message")
