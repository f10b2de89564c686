"""What commands that call AWS share: flags, the session, and what an error says to a script."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from penstock.terminal import ExitCode, describe_by_flag

if TYPE_CHECKING:
    from penstock.aws import AwsOptions

EXTRA: Final = 'pip install "penstock-cli[kinesis]"'
_FLAGS: Final = {
    "region": "region of the stream; default: boto3's default chain",
    "endpoint_url": "endpoint of Kinesis, for emulators and VPC endpoints",
    "profile": "profile of the shared configuration files",
    "role_arn": "role to assume",
    "role_external_id": "external id that the role requires",
    "ca_bundle": "PEM file of the certificate authorities to trust",
}


def add_aws_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where AWS is and who we are."""
    group = parser.add_argument_group(
        "AWS", "the same as the options of the data source; the variables of AWS are read too"
    )
    for name, text in _FLAGS.items():
        group.add_argument(f"--{name.replace('_', '-')}", help=text)


def given_aws_flags(arguments: argparse.Namespace) -> list[str]:
    """Those flags of `add_aws_arguments` that were given."""
    return [f"--{name.replace('_', '-')}" for name in _FLAGS if getattr(arguments, name)]


def aws_options(arguments: argparse.Namespace) -> AwsOptions:
    """The options from the flags of `add_aws_arguments`.

    Raises:
        AwsOptionError: a setting is wrong; the error names it.
    """
    from penstock.aws import AwsOptions

    return AwsOptions(**{name: value for name in _FLAGS if (value := getattr(arguments, name))})


def run_calls(prog: str, arguments: argparse.Namespace, calls: Callable[[], Coroutine[Any, Any, int] | int]) -> int:
    """Run what calls AWS, and give its exit code; an error is one line with the code that suits it."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # It logs with a traceback what it raises next.
    logging.getLogger("botocore.credentials").setLevel(logging.ERROR)
    try:
        done = calls()
        return done if isinstance(done, int) else asyncio.run(done)
    except Exception as error:
        code = code_of(error)
        if code is None:
            raise
        sys.stderr.write(f"{prog}: {describe_by_flag(error, arguments, 'AWS')}{_cure(error)}\n")
        return code


def _cure(error: BaseException | None) -> str:
    """What to do where a stream does not exist."""
    while error is not None:
        if getattr(error, "code", "") == "ResourceNotFoundException":
            return (
                ": penstock streams ls lists the streams of this account and region; "
                "penstock streams create NAME --shards 1 creates one"
            )
        error = error.__cause__
    return ""


def is_utf8(text: str) -> bool:
    """Whether an argument is; Python hands others on with surrogates in the place of their bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def missing(prog: str, error: ImportError) -> int:
    """Tell what brings a command's packages."""
    sys.stderr.write(f"{prog}: {error}: {EXTRA}\n")
    return ExitCode.FAILED


def code_of(error: BaseException) -> ExitCode | None:
    """The exit code for an error or its causes: no answer, refused, wrong setting. None for a defect of Penstock."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
    from botocore.exceptions import ConnectionError as NoConnectionError

    from penstock.aws import AwsConnectionError, AwsError, AwsOptionError, AwsServiceError

    seen: BaseException | None = error
    while seen is not None:
        # S3 is asked by boto3.
        if isinstance(seen, AwsConnectionError | HTTPClientError | NoConnectionError):
            return ExitCode.UNREACHABLE
        if isinstance(seen, AwsServiceError | BotoCoreError | ClientError):
            return ExitCode.FAILED
        if isinstance(seen, AwsOptionError):
            return ExitCode.USAGE
        seen = seen.__cause__
    if getattr(error, "option", None) is not None:
        return ExitCode.USAGE
    is_ours = isinstance(error, AwsError) or type(error).__module__.startswith("penstock.")
    return ExitCode.FAILED if is_ours else None
