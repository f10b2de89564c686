"""Credentials: where they come from, and which roles are assumed with them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from penstock.aws import ROLE_ARN, AwsOptionError, AwsOptions
from penstock.spark_plugin._options.spec import DRIVER, OWN_CREDENTIALS, SECONDS, TASK, field_name
from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_SESSION_NAME = (r"(?a:[\w+=,.@-]{2,64})", "2 to 64 letters, digits, _ + = , . @ and -")
_NO_SYSTEM_PROPERTIES = (
    "Python has no system properties of Java: give awsAccessKeyId and awsSecretAccessKey, or set the environment's "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)

_credential = partial(option, acts=(DRIVER, TASK), refused_with=(OWN_CREDENTIALS,))


@dataclass(frozen=True, kw_only=True)
class CredentialOptions:
    """Options of credentials."""

    aws_credentials_provider: str = _credential(
        default="auto",
        refused_with=(replace(OWN_CREDENTIALS, unless="auto"),),
        choices=("auto", "basic", "env_var", "profile", "assume_role", "web_identity_token", "custom"),
        choice_cures=(("sys_prop", _NO_SYSTEM_PROPERTIES),),
        flink="aws.credentials.provider",
    )
    """What credentials come from; auto is: from those that are given. The others are an error when theirs are
    missing."""
    aws_access_key_id: str | None = _credential(
        requires=("awsSecretAccessKey", "is half of an access key"),
        flink="aws.credentials.provider.basic.accesskeyid",
        databricks="awsAccessKey",
        aws="kinesis.awsAccessKeyId",
    )
    """Access key. Default: the environment's credential chain."""
    aws_secret_access_key: str | None = _credential(
        requires=("awsAccessKeyId", "is half of an access key"),
        secret=True,
        flink="aws.credentials.provider.basic.secretkey",
        databricks="awsSecretKey",
        aws="kinesis.awsSecretKey",
    )
    """Secret key that belongs to `awsAccessKeyId`."""
    aws_session_token: str | None = _credential(
        requires=("awsAccessKeyId", "belongs to a key"), secret=True, aws="kinesis.sessionToken"
    )
    """Token of temporary keys."""
    aws_profile: str | None = _credential(flink="aws.credentials.provider.profile.name")
    """Profile of the AWS configuration files."""
    credentials_provider: str | None = _credential()
    """`package.module:callable` of Python that gives credentials: it returns
    `penstock.aws.ProvidedCredentials`, and is called on the driver and in tasks, again before they expire."""
    role_arn: str | None = _credential(databricks="roleArn", aws="kinesis.stsRoleArn")
    """Role to assume; several, with commas, are assumed one with the credentials of the other."""
    role_session_name: str | None = _credential(
        requires=("roleArn", "belongs to a role"),
        pattern=_SESSION_NAME,
        flink="aws.credentials.provider.role.sessionName",
        databricks="roleSessionName",
        aws="kinesis.stsSessionName",
    )
    """Name of the assumed role's session."""
    role_external_id: str | None = _credential(
        requires=("roleArn", "belongs to a role"),
        secret=True,
        flink="aws.credentials.provider.role.externalId",
        databricks="roleExternalId",
    )
    """External id that the role asks for."""
    role_credentials_provider: str = _credential(
        requires=("roleArn", "belongs to a role"),
        default="auto",
        refused_with=(replace(OWN_CREDENTIALS, unless="auto"),),
        choices=("auto", "basic", "env_var", "profile", "custom"),
        choice_cures=(
            ("assume_role", "name both roles in roleArn, with a comma: the first is assumed to assume the second"),
            (
                "web_identity_token",
                "name both roles in roleArn, with a comma, and the token in webIdentityTokenFile: the first role is "
                "assumed with it",
            ),
            ("sys_prop", _NO_SYSTEM_PROPERTIES),
        ),
    )
    """What credentials the role is assumed with; auto is: those that are given, or the default chain's. The
    others are an error when theirs are missing."""
    role_session_duration: float | None = _credential(
        SECONDS, requires=("roleArn", "belongs to a role"), minimum=900, maximum=43200
    )
    """How long the session of the (last) role lasts, 15m to 12h, and at most 1h for a role that another one
    assumes. Default: STS's hour. It is renewed before its end."""
    role_session_tags: str | None = _credential(requires=("roleArn", "belongs to a role"))
    """Tags of the (last) role's session: `key=value`, several with commas."""
    sts_endpoint_url: str | None = _credential(
        requires=("roleArn", "belongs to a role"),
        flink="aws.credentials.provider.role.stsEndpoint",
        databricks="stsEndpoint",
        aws="kinesis.stsEndpointUrl",
    )
    """URL of the STS API."""
    web_identity_token_file: str | None = _credential(
        requires=("roleArn", "belongs to a role"), flink="aws.credentials.provider.webIdentityToken.file"
    )
    """File with a web identity token, to assume the (first) role of `roleArn` with."""


_PROVIDERS = {
    "basic": "awsAccessKeyId",
    "profile": "awsProfile",
    "assume_role": "roleArn",
    "custom": "credentialsProvider",
}


def check_credentials(options: "KinesisOptions") -> None:
    """Credentials come from one place, and whatever that place needs is given.

    Raises:
        OptionError: an option is missing or contradicts another one; the error names it.
    """
    for arn in (options.role_arn or "").split(",") if options.role_arn else ():
        if not ROLE_ARN.fullmatch(arn.strip()):
            raise OptionError.invalid("roleArn", arn.strip(), "an ARN such as arn:aws:iam::123456789012:role/reader")
    _alone(options, "awsProfile", ("awsAccessKeyId",), "credentials come from one place")
    others: tuple[str, ...] = ("awsAccessKeyId", "awsProfile", "webIdentityTokenFile")
    _alone(options, "credentialsProvider", others, "credentials come from one place")
    for name, others in (
        ("awsCredentialsProvider", ("awsAccessKeyId", "awsProfile", "roleArn", "credentialsProvider")),
        ("roleCredentialsProvider", ("awsAccessKeyId", "awsProfile", "credentialsProvider", "webIdentityTokenFile")),
    ):
        chosen = getattr(options, field_name(name))
        needed = _PROVIDERS.get(chosen)
        if needed is not None and getattr(options, field_name(needed)) is None:
            raise OptionError.missing(needed, f"${name} is {chosen}")
        if chosen == "env_var":
            _alone(options, name, others, "env_var takes the environment's")
    try:
        AwsOptions.from_mapping(options.aws_mapping())
    except AwsOptionError as error:
        raise OptionError.unusable(error.option, error.reason) from error


def _alone(options: "KinesisOptions", name: str, others: tuple[str, ...], reason: str) -> None:
    if getattr(options, field_name(name)) is not None:
        for other in others:
            if getattr(options, field_name(other)) is not None:
                raise OptionError.contradictory(name, other, reason)


def check_environment(options: "KinesisOptions", environ: Mapping[str, str]) -> None:
    """Check that the environment has the credentials that are to come from it: the default chain would look elsewhere.

    Raises:
        OptionError: the environment lacks them.
    """
    for name, variables in (
        ("roleCredentialsProvider", {"env_var": "AWS_ACCESS_KEY_ID"}),
        (
            "awsCredentialsProvider",
            {"env_var": "AWS_ACCESS_KEY_ID", "web_identity_token": "AWS_WEB_IDENTITY_TOKEN_FILE"},
        ),
    ):
        chosen = getattr(options, field_name(name))
        variable = variables.get(chosen)
        if chosen == "web_identity_token" and options.web_identity_token_file is not None:
            continue
        if variable is not None and not environ.get(variable):
            rule = f"another one, or {variable} be set in the driver's environment"
            raise OptionError.invalid(name, chosen, rule)
