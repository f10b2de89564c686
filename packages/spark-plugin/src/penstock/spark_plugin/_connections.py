"""How AWS and the services are reached, from the options."""

import os
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

from penstock.aws import AwsLocation, AwsOptionError, AwsOptions, AwsSession
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._options.kinesis_options import KinesisOptions


def aws_options(options: KinesisOptions) -> AwsOptions:
    """How AWS is reached."""
    return replace(AwsOptions.from_mapping(options.aws_mapping()), stream_service=options.stream_service)


_MOST_SESSIONS = 16
_sessions: OrderedDict[tuple[object, ...], AwsSession] = OrderedDict()
_lock = threading.Lock()


def shared_session(options: AwsOptions) -> AwsSession:
    """The session of all tasks of a process that have the same options: what one of them found or renewed, all have.

    Raises:
        penstock.aws.AwsOptionError: no region is set, or the profile does not exist.
    """
    environment = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    # A forked child has a session of its own: its parent's may be in the middle of something.
    key = (os.getpid(), options, environment)
    with _lock:
        if key not in _sessions:
            _sessions[key] = AwsSession(options)
            while len(_sessions) > _MOST_SESSIONS:
                _sessions.popitem(last=False)
        _sessions.move_to_end(key)
        return _sessions[key]


def caller_location(options: KinesisOptions, service_name: str = "kinesis") -> AwsLocation:
    """Where the streams of the options are, without a call to AWS.

    A service that a query uses compares it with its own: a stream of the same name elsewhere is another one.

    Raises:
        penstock.aws.AwsOptionError: the environment or the profile has an invalid region or endpoint.
    """
    aws = aws_options(options)
    try:
        session = AwsSession(aws)
    except AwsOptionError as error:
        if error.option != "region" or aws.region is not None:
            raise
        # Nothing here names a region: the service's is the one that is meant.
        return AwsLocation(endpoint_url=aws.endpoint_url or "")
    return AwsLocation.of(session, service_name)


def service_security(options: KinesisOptions) -> ClientSecurity:
    """How the services are reached."""

    def file(name: str | None) -> Path | None:
        return Path(name) if name else None

    return ClientSecurity(
        ca_file=file(options.service_ca_file),
        certificate_file=file(options.service_certificate_file),
        private_key_file=file(options.service_private_key_file),
        token=options.service_token,
        token_file=file(options.service_token_file),
    )
