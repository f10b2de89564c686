"""Errors as they reach users of Spark, which shows the whole traceback of a source's process: short, and what to do."""

import functools
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_REMEDIES: tuple[tuple[str, str], ...] = (
    (
        r"the stream consumer was deregistered",
        "start the query again: it goes on from its checkpoint, by a consumer that it registers anew; with "
        "efoRegistration none, register one yourself, and give its ARN by efoConsumerArn",
    ),
    (
        # A shard that is gone says so itself; the stream's name is right then.
        r"ResourceNotFound(?!.*this shard does not)",
        "check streamName, the region ({region}), and of which account the credentials are; a stream of another "
        "account goes by its streamArn",
    ),
    (
        r"AccessDenied|NotAuthorized",
        "allow it to the identity that the credentials are of, or give others (awsProfile, roleArn)",
    ),
    (
        r"UnrecognizedClient|InvalidSignature|InvalidClientTokenId|ExpiredToken|IncompleteSignature",
        "the credentials are wrong, or have expired: check the keys, the session token, and the clock",
    ),
    (r"WRONG_VERSION_NUMBER", "the endpoint has no TLS: write http:// in endpointUrl, or give the port that has TLS"),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSL validation failed",
        "name the PEM file of the authority that signed the endpoint's certificate by caBundle",
    ),
    (
        r"no answer from|Could not connect|Connect timeout|EndpointConnectionError",
        "check endpointUrl ({endpoint}), the region ({region}), and the network to it",
    ),
    (
        r"\[CONSUMER_LIMIT\]",
        "deregister a consumer that nobody needs, read by recordPublisher=polling, or have the limit raised",
    ),
    (r"^AwsOptionError: region", "give the option region, set AWS_REGION, or name a profile that has a region"),
)


class HasOptions(Protocol):
    """A reader or writer."""

    _options: KinesisOptions


_S = TypeVar("_S", bound=HasOptions)


def with_remedies(method: Callable[Concatenate[_S, _P], _T]) -> Callable[Concatenate[_S, _P], _T]:
    """A method of a reader or writer whose errors come without the frames and causes below it, with a remedy as a note.

    Only errors of Penstock's own packages, whose words name the cause: others keep all that is known of them. The whole
    of it is logged for DEBUG.
    """

    @functools.wraps(method)
    def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if not type(error).__module__.startswith("penstock."):
                raise
            _log.debug("the error in full", exc_info=True)
            failure = for_users(error, self._options).with_traceback(None)
        raise failure from None

    return call


def without_frames(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """A method that Spark calls as it makes a frame, whose errors of this package come without the frames below it.

    Spark shows all of the traceback, and our last line is what the user needs.
    """

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except SparkPluginError as error:
            _log.debug("the error in full", exc_info=True)
            failure = error.with_traceback(None)
        raise failure from None

    return call


def rows_with_remedies(rows: Iterator[_T], options: KinesisOptions) -> Iterator[_T]:
    """The rows of a task, whose errors say as much; they keep their frames, which are few there."""
    try:
        yield from rows
    except Exception as error:
        if type(error).__module__.startswith("penstock."):
            for_users(error, options)
        raise


def for_users(error: Exception, options: KinesisOptions) -> Exception:
    """An error of Penstock's own packages, with its remedy, and with options by the names that the user wrote.

    Where no remedy is known it says where the error is explained; an option that is wrong says itself what to do.
    """
    note = remedy(error, options)
    if note is None and not isinstance(error, OptionError):
        note = f"more: penstock errors {type(error).__name__} (of the package penstock-cli)"
    if note is not None:
        note = options.in_own_words(note)
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    if isinstance(error, OptionError):
        error.rename(options.written)
    elif error.args and error.args[0] == str(error):
        error.args = (options.in_own_words(str(error)), *error.args[1:])
    return error


def remedy(error: Exception, options: KinesisOptions) -> str | None:
    """What to do about an error of AWS, where its words do not say so."""
    if options.ca_bundle is not None and not os.path.isfile(options.ca_bundle):
        return f"caBundle names a file that is not there: {options.ca_bundle}"
    text = f"{type(error).__name__}: {error}"
    for pattern, words in _REMEDIES:
        if re.search(pattern, text):
            if options.table_name is not None:
                words = words.replace("streamName", "tableName")
            return words.format(
                region=options.region or "from the environment",
                endpoint=options.endpoint_url
                or f"not given: {_endpoint_variable(options)} and AWS_ENDPOINT_URL decide, if set",
            )
    return None


def _endpoint_variable(options: KinesisOptions) -> str:
    return "AWS_ENDPOINT_URL_KINESIS" if options.table_name is None else "AWS_ENDPOINT_URL_DYNAMODB_STREAMS"
