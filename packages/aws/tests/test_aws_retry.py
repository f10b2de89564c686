from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, EventStreamError
from hypothesis import given
from hypothesis import strategies as st

from penstock.aws import (
    AwsError,
    AwsOptionError,
    AwsServiceError,
    BackoffPolicy,
    ErrorKind,
    classify,
    error_code,
    retry,
)


def service_error(code: str, status: int = 400) -> AwsServiceError:
    return AwsServiceError(code=code, message="", status=status, operation="GetRecords")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (service_error("ProvisionedThroughputExceededException"), ErrorKind.THROTTLED),
        (service_error("LimitExceededException"), ErrorKind.THROTTLED),
        (service_error("KMSThrottlingException"), ErrorKind.THROTTLED),
        (service_error("InternalFailure", 500), ErrorKind.RETRYABLE),
        (service_error("Anything", 503), ErrorKind.RETRYABLE),
        (service_error("ExpiredIteratorException"), ErrorKind.RETRYABLE),
        (service_error("AccessDeniedException"), ErrorKind.FATAL),
        (service_error("ResourceNotFoundException"), ErrorKind.FATAL),
        (service_error("KMSDisabledException"), ErrorKind.FATAL),
        (service_error("InvalidArgumentException"), ErrorKind.FATAL),
        (service_error("ValidationException"), ErrorKind.FATAL),
        (EventStreamError({"Error": {"Code": "internalFailureException"}}, "SubscribeToShard"), ErrorKind.RETRYABLE),
        (ClientError({"Error": {"Code": "ns#LimitExceededException"}}, "RegisterStreamConsumer"), ErrorKind.THROTTLED),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1"), ErrorKind.RETRYABLE),
        (TimeoutError(), ErrorKind.RETRYABLE),
        (ConnectionResetError(), ErrorKind.RETRYABLE),
        (ValueError(), ErrorKind.FATAL),
    ],
)
def test_each_error_is_retried_or_raised(error: AwsError, kind: ErrorKind) -> None:
    """The table of retryable and fatal errors, for our own errors and for botocore's."""
    assert classify(error) is kind


def test_the_code_inside_an_event_stream_is_read_like_any_other() -> None:
    """Event streams spell codes with a small first letter."""
    error = EventStreamError({"Error": {"Code": "resourceInUseException"}}, "SubscribeToShard")
    assert error_code(error) == "ResourceInUseException"


@given(
    attempt=st.integers(0, 5000),
    base=st.integers(0, 5000),
    extra=st.integers(0, 5000),
    exponent=st.floats(1, 4),
    random=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_is_never_longer_than_the_maximum(
    attempt: int, base: int, extra: int, exponent: float, random: float
) -> None:
    """Full jitter stays between zero and the bound, also after thousands of attempts."""
    policy = BackoffPolicy(
        base=timedelta(milliseconds=base), maximum=timedelta(milliseconds=base + extra), exponent=exponent
    )
    assert 0 <= policy.delay_seconds(attempt, lambda: random) <= (base + extra) / 1000


def test_the_bound_grows_by_the_exponent_until_the_maximum() -> None:
    """base x exponent^n, as FLIP-128 defines it."""
    policy = BackoffPolicy()
    bounds = [round(policy.delay_seconds(attempt, lambda: 1.0), 4) for attempt in range(6)]
    assert bounds == [0.2, 0.3, 0.45, 0.675, 1.0, 1.0]


@pytest.mark.parametrize(
    "arguments",
    [{"maximum": timedelta(milliseconds=1)}, {"exponent": 0.5}, {"max_attempts": 0}, {"base": timedelta(-1)}],
)
def test_an_impossible_policy_is_refused(arguments: dict[str, Any]) -> None:
    """A policy is checked when it is made, not when it is first needed."""
    with pytest.raises(AwsOptionError):
        BackoffPolicy(**arguments)


class Calls:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.slept: list[float] = []

    async def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_retryable_errors_are_retried_with_growing_pauses() -> None:
    """Two failures cost two pauses, then the answer comes."""
    calls = Calls(TimeoutError(), service_error("InternalFailure", 500))
    assert await retry(calls, BackoffPolicy(), sleep=calls.sleep, random=lambda: 1.0) == "done"
    assert calls.slept == pytest.approx([0.2, 0.3])
