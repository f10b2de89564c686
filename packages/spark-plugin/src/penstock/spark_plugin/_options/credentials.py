"""Credentials: where they come from, and which roles are assumed with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.aws import ROLE_ARN, AwsOptionError, AwsOptions
from penstock.spark_plugin._options.spec import field_name
from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

GATEWAY_CREDENTIALS = {"sinkEndpoint": "the sink gateway reaches AWS with settings and credentials of its own"}
_SESSION_NAME = (r"(?a:[\w+=,.@-]{2,64})", "2 to 64 letters, digits, _ + = , . @ and -")
_PROVIDERS = ("auto", "basic", "env_var", "profile", "custom")


def _credential(*kind: str, beside: tuple[str, ...] = (), **declared: Any) -> Any:
    not_with = GATEWAY_CREDENTIALS | dict.fromkeys(beside, "credentials come from one place")
    return option(*kind, acts="driver task", not_with=not_with, **declared)


_of_role = partial(_credential, needs="roleArn")


@dataclass(frozen=True, kw_only=True)
class CredentialOptions:
    """Options of credentials."""

    aws_access_key_id: str | None = _credential(needs="awsSecretAccessKey")
    """Access key. Default: the environment's credential chain."""
    aws_secret_access_key: str | None = _credential(needs="awsAccessKeyId", secret=True)
    """Secret key that belongs to `awsAccessKeyId`."""
    aws_session_token: str | None = _credential(needs="awsAccessKeyId", secret=True)
    """Token of temporary keys."""
    aws_profile: str | None = _credential(beside=("awsAccessKeyId",))
    """Profile of the AWS configuration files."""
    credentials_provider: str | None = _credential(beside=("awsAccessKeyId", "awsProfile", "webIdentityTokenFile"))
    """`package.module:callable` of Python that gives credentials: it returns
    `penstock.aws.ProvidedCredentials`, and is called on the driver and in tasks, again before they expire."""
    aws_credentials_provider: str = _credential(
        default="auto", harmless="auto", choices=(*_PROVIDERS, "assume_role", "web_identity_token")
    )
    """The source of credentials; auto uses those that are given. The other values are an error when the credentials
    that they name are missing."""
    role_arn: str | None = _credential()
    """Role to assume. Several roles, with commas, are assumed in this order, each with the credentials of the one
    before."""
    role_session_name: str | None = _of_role(pattern=_SESSION_NAME)
    """Name of the assumed role's session."""
    role_external_id: str | None = _of_role(secret=True)
    """External id that the role requires."""
    role_credentials_provider: str = _of_role(default="auto", harmless="auto", choices=_PROVIDERS)
    """The source of the credentials that assume the role; auto uses those that are given, or else the default
    chain's. The other values are an error when the credentials that they name are missing. To assume a role with
    another role, name both in `roleArn`."""
    role_session_duration: float | None = _of_role("seconds", minimum=900, maximum=43200)
    """How long the session of the (last) role lasts, 15m to 12h, and at most 1h for a role that another role
    assumes. Default: STS's hour. It is renewed before its end."""
    role_session_tags: str | None = _of_role()
    """Tags of the (last) role's session: `key=value`, several with commas."""
    sts_endpoint_url: str | None = _of_role()
    """URL of the STS API."""
    web_identity_token_file: str | None = _of_role()
    """File with a web identity token, which assumes the (first) role of `roleArn`."""


_NEEDED = {
    "basic": "awsAccessKeyId",
    "profile": "awsProfile",
    "assume_role": "roleArn",
    "custom": "credentialsProvider",
}
_VARIABLES = {"env_var": "AWS_ACCESS_KEY_ID", "web_identity_token": "AWS_WEB_IDENTITY_TOKEN_FILE"}
_GIVEN = ("awsAccessKeyId", "awsProfile", "credentialsProvider")


def check_credentials(options: "KinesisOptions") -> None:
    """Check that credentials come from one source, and that what the source needs is given.

    Raises:
        OptionError: an option is missing or contradicts another one; the error names it.
    """
    for arn in (options.role_arn or "").split(",") if options.role_arn else ():
        if not ROLE_ARN.fullmatch(arn.strip()):
            raise OptionError.invalid("roleArn", arn.strip(), "an ARN such as arn:aws:iam::123456789012:role/reader")
    for name, more in (("awsCredentialsProvider", "roleArn"), ("roleCredentialsProvider", "webIdentityTokenFile")):
        chosen = getattr(options, field_name(name))
        needed = _NEEDED.get(chosen)
        if needed is not None and getattr(options, field_name(needed)) is None:
            raise OptionError.missing(needed, f"${name} is {chosen}")
        for other in (*_GIVEN, more) if chosen == "env_var" else ():
            if getattr(options, field_name(other)) is not None:
                raise OptionError.contradictory(name, other, "env_var uses the environment's")
    try:
        AwsOptions.from_mapping(options.aws_mapping())
    except AwsOptionError as error:
        raise OptionError.unusable(error.option, error.reason) from error


def check_environment(options: "KinesisOptions", environ: Mapping[str, str]) -> None:
    """Check that the environment has the credentials that should come from it: the default chain would look elsewhere.

    Raises:
        OptionError: the environment lacks them.
    """
    for name in ("roleCredentialsProvider", "awsCredentialsProvider"):
        chosen = getattr(options, field_name(name))
        if chosen == "web_identity_token" and options.web_identity_token_file is not None:
            continue
        variable = _VARIABLES.get(chosen)
        if variable is not None and not environ.get(variable):
            rule = f"another one, or {variable} must be set in the driver's environment"
            raise OptionError.invalid(name, chosen, rule)
