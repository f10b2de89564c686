"""Names and ARNs of streams and of their consumers."""

from __future__ import annotations

import re
from typing import Final

from penstock.registration.errors import RegistrationOptionError

_CONSUMER_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CONSUMER_ARN: Final = re.compile(
    r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)/consumer/(?P<consumer>[a-zA-Z0-9_.-]+):\d+"
)
_STREAM_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/(?P<stream>[a-zA-Z0-9_.-]+)")


def consumer_name_of(consumer_arn: str) -> str:
    """The name inside a consumer's ARN.

    Raises:
        RegistrationOptionError: the text is not the ARN of a stream consumer.
    """
    match = _CONSUMER_ARN.fullmatch(consumer_arn)
    if match is None:
        raise RegistrationOptionError(
            option="consumer_arn", reason=f"{consumer_arn!r} is not the ARN of a stream consumer"
        )
    return match["consumer"]


def is_arn(stream: str) -> bool:
    """Whether a stream is given by its ARN, not by its name."""
    return stream.startswith("arn:")


def stream_name_of(stream: str) -> str:
    """The name of a stream that is given by its name or its ARN."""
    return stream.rpartition("stream/")[2] if is_arn(stream) else stream


def stream_arn_of(consumer_arn: str) -> str:
    """The ARN of the stream inside a consumer's ARN; empty when there is none."""
    stream, _, rest = consumer_arn.partition("/consumer/")
    return stream if rest else ""


def check_stream_arn(arn: str, option: str = "stream_arn") -> None:
    """Raise RegistrationOptionError unless it is the ARN of a stream."""
    if _STREAM_ARN.fullmatch(arn) is None:
        raise RegistrationOptionError(option=option, reason=f"{arn!r} is not the ARN of a stream")


def check_consumer_name(name: str, option: str = "consumer_name") -> None:
    """Raise RegistrationOptionError unless Kinesis would accept the name."""
    if _CONSUMER_NAME.fullmatch(name) is None:
        raise RegistrationOptionError(
            option=option, reason=f"{name!r} is not 1 to 128 characters of letters, digits, _ . and -"
        )
