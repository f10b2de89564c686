"""What a refusal means, and what to do: which resource is missing, whether a consumer is ACTIVE yet, and other advice.

ResourceNotFoundException stands for the stream, the consumer and the shard alike, ResourceInUseException for a consumer
that is not ACTIVE and for a subscription that another reader holds. Each means something else to a reader: a consumer
that was taken for a finished shard loses data.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from penstock.aws import AwsError, AwsServiceError, JsonClient, are_credentials_refused, error_code
from penstock.efo_consumer.errors import RecordPublisherFatalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.efo_consumer._model.shards import StreamIdentity

_log = logging.getLogger(__name__)

NOT_FOUND = "ResourceNotFoundException"

CREDENTIALS_ADVICE = (
    "the credentials have expired or are unknown, and no others were found: keys that are given as options "
    "cannot be renewed; a profile, a role or a web identity can"
)
"""For credentials that were refused although `AwsSession` renewed them where it could."""

# DescribeStreamConsumer allows 20 calls/s per stream, and a thousand shards may wait for a consumer to become ACTIVE.
_STATUS_SECONDS = 1.0

_ADVICE = {
    "stream": "the stream does not exist (any more) in this account and region",
    "consumer": "the stream consumer was deregistered: register it again (its ARN changes), and read on from the last "
    "position",
    "shard": "the stream and the consumer exist, this shard does not (any more): it is older than the stream's "
    "retention, or the position is of another stream with the same name",
}


_ADVICE_BY_CODE = {
    "InvalidArgumentException": "the position may be older than the stream's retention, or of another stream",
    "KMSDisabledException": "the key that encrypts the stream is disabled: enable it",
    "KMSInvalidStateException": "the key that encrypts the stream cannot be used in the state that it is in",
    "KMSAccessDeniedException": "the credentials need kms:Decrypt on the key that encrypts the stream",
    "KMSNotFoundException": "the key that encrypts the stream is gone",
    "KMSOptInRequired": "the account is not subscribed to KMS",
}


class KinesisDiagnosis:
    """What a reader asks Kinesis after a refusal. A call that fails is not an error: its answer is unknown.

    Args:
        client: makes the calls; closed with this.
    """

    def __init__(self, client: JsonClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._asking: dict[str, asyncio.Lock] = {}
        self._answers: dict[str, tuple[float, dict[str, Any] | None]] = {}

    async def missing(self, stream: StreamIdentity, consumer_arn: str | None) -> str | None:
        """Which resource is missing: `stream`, `consumer` or `shard`; None where it is unknown."""
        found = await self._describe("DescribeStreamSummary", stream.request)
        if found is None:
            return None
        if not found:
            return "stream"
        if consumer_arn is not None:
            status = await self._status(consumer_arn)
            if status in ("", "DELETING"):
                return "consumer"
            if status is None:
                return None
        return "shard"

    async def consumer_status(self, consumer_arn: str) -> str | None:
        """CREATING, ACTIVE or DELETING; empty if the consumer does not exist, None if that is unknown."""
        return await self._status(consumer_arn, max_age_seconds=_STATUS_SECONDS)

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    async def _status(self, consumer_arn: str, *, max_age_seconds: float = 0.0) -> str | None:
        found = await self._describe("DescribeStreamConsumer", {"ConsumerARN": consumer_arn}, max_age_seconds)
        return None if found is None else str(found.get("ConsumerDescription", {}).get("ConsumerStatus", ""))

    async def _describe(
        self, operation: str, resource: dict[str, str], max_age_seconds: float = 0.0
    ) -> dict[str, Any] | None:
        """The answer; empty if the resource does not exist, None if that is unknown."""
        # All shards of a stream or consumer ask at the same moment: one of them makes the call. What is missing was
        # there a moment ago, so an answer from before the refusal may be wrong.
        oldest = self._clock() - max_age_seconds
        [name] = resource.values()
        async with self._asking.setdefault(name, asyncio.Lock()):
            asked_at, found = self._answers.get(name, (float("-inf"), None))
            if asked_at < oldest:
                asked_at = self._clock()
                found = await self._ask(operation, resource)
                self._answers[name] = (asked_at, found)
            return found

    async def _ask(self, operation: str, resource: dict[str, str]) -> dict[str, Any] | None:
        try:
            return await self._client.call(operation, resource)
        except (AwsError, OSError) as error:
            if error_code(error) == NOT_FOUND:
                return {}
            _log.info("cannot find out more about a refusal: %s", error)
            return None


def code_of(error: Exception) -> str:
    """The service's exception name, or the Python class of the error."""
    return error_code(error) or type(error).__name__


def permission(error: AwsServiceError) -> str:
    """The action of IAM that a call needs."""
    return error.operation if ":" in error.operation else f"kinesis:{error.operation}"


def with_advice(error: Exception, *, of: str = "") -> str:
    """The error's message, with what to do about it if that is known.

    Args:
        of: what else the words should name.
    """
    advice = _ADVICE_BY_CODE.get(code_of(error))
    if are_credentials_refused(error):
        advice = CREDENTIALS_ADVICE
    elif isinstance(error, AwsServiceError) and error.code == "AccessDeniedException":
        on = " on the consumer's ARN" if error.operation == "SubscribeToShard" else ""
        advice = f"the credentials need {permission(error)}{on}"
    return f"{error}{of}" + (f": {advice}" if advice else "")


async def resource_missing(
    diagnosis: KinesisDiagnosis | None,
    error: Exception,
    *,
    stream: StreamIdentity,
    shard_id: str,
    consumer_arn: str | None,
) -> RecordPublisherFatalError:
    """The error that says which resource a ResourceNotFoundException is about."""
    resource = None if diagnosis is None else await diagnosis.missing(stream, consumer_arn)
    advice = _ADVICE.get(resource or "")
    if advice is None:
        advice = (
            "the stream, the shard or the stream consumer is gone"
            if consumer_arn
            else "the stream or the shard is gone"
        )
    of_consumer = f" (consumer {consumer_arn})" if consumer_arn else ""
    return RecordPublisherFatalError(
        f"{error}{of_consumer}: {advice}", stream=stream.name, shard_id=shard_id, code=NOT_FOUND, resource=resource
    )
