"""Errors as they reach users of Spark, which shows the whole traceback of a source's process: short, and what to do."""

import functools
import logging
import os
import ssl
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penstock.aws import AwsOptionError
from penstock.efo_consumer.errors import RecordPublisherFatalError, RecordPublisherRetriesError, ShardFailedError
from penstock.rpc.errors import CodedError
from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

_CONSUMER, _STREAM = "consumer is missing", "stream is missing"
_REMEDIES = {
    _CONSUMER: "start the query again: it continues from its checkpoint, with a consumer that it registers then; with "
    "$efoRegistration none, register one yourself, and give its ARN as $efoConsumerArn",
    f"{_STREAM}|StreamNotFoundError": "check $streamName, the region ($REGION), and the account of the credentials; a "
    "stream of another account is named by its $streamArn",
    "AccessDenied|NotAuthorized|REGISTRATION_DENIED": "allow it to the identity of the credentials, or give others "
    "($awsProfile, $roleArn)",
    "UnrecognizedClient|InvalidSignature|SignatureDoesNotMatch|InvalidClientTokenId|ExpiredToken|IncompleteSignature": (
        "the credentials are wrong, or have expired: check the keys, the session token, and the clock"
    ),
    "WRONG_VERSION_NUMBER": "the endpoint has no TLS: write http:// in $endpointUrl, or give the port that has TLS",
    "SSLCertVerificationError": "name the PEM file of the authority of the endpoint's certificate by $caBundle",
    "AwsConnectionError|EndpointConnectionError|ConnectTimeoutError": "check $endpointUrl ($ENDPOINT), the region "
    "($REGION), and the network to it",
    "CONSUMER_LIMIT": "deregister a consumer that is not needed, read by $recordPublisher=polling, or have the limit "
    "raised",
    "AwsOptionError: region": "give the option $region, set AWS_REGION, or name a profile that has a region",
}
"""Remedies, by the facts (separated by |) that `_facts` finds about an error or one of its causes."""
_LIMITS = ("getRecordsMaxRetries", "subscribeToShardMaxRetries")


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
    if isinstance(error, OptionError):
        error.rename(options.written)
    note = remedy(error, options)
    if note is None and not isinstance(error, OptionError):
        name = (isinstance(error, CodedError) and error.code) or type(error).__name__
        note = f"more: penstock errors {name} (of the package penstock-cli)"
    if note is not None and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def remedy(error: Exception, options: KinesisOptions) -> str | None:
    """What to do about an error of AWS, where its words do not say so."""
    if options.ca_bundle is not None and not os.path.isfile(options.ca_bundle):
        return f"caBundle names a file that is not there: {options.ca_bundle}"
    causes = list(_causes(error))
    facts = {fact for cause in causes for fact in _facts(cause)}
    refused = (one.resource for one in causes if isinstance(one, RecordPublisherFatalError))
    missing = next((resource for resource in refused if resource), "stream")
    if "ResourceNotFound" in facts:
        facts.add(f"{missing} is missing")
    words = next((words for known, words in _REMEDIES.items() if facts & set(known.split("|"))), None)
    if words is None and any(isinstance(one, RecordPublisherRetriesError) for one in causes):
        limits = [name for name in _LIMITS if name in options.written] or ["retryPatience"]
        words = f"to bear longer outages, give ${' or $'.join(limits)} a larger value"
    return None if words is None else options.in_own_words(words)


def _causes(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _facts(error: BaseException) -> Iterator[str]:
    """Its class, the code of the service, or the class of the cause as another process names it."""
    yield type(error).__name__
    if isinstance(error, AwsOptionError):
        yield f"AwsOptionError: {error.option}"
    if isinstance(error, ssl.SSLError):
        yield str(error.reason)
    code = str(getattr(error, "code", ""))
    # A reader behind an endpoint says in its words what is missing.
    if not isinstance(error, ShardFailedError) or error.__cause__ is not None:
        yield code.removesuffix("Exception")
