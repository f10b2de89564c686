"""What can be said of the settings before the first client comes."""

from __future__ import annotations

from penstock.aws import AwsError, AwsOptionError, AwsOptions, AwsSession
from penstock.services.sink_gateway._serve import sinks
from penstock.services.sink_gateway._settings import GatewaySettings


def check_settings(settings: GatewaySettings) -> None:
    """Try the settings: limits against the services' own, and AWS as far as that needs no call of the services.

    Raises:
        SinkOptionError: a limit is more than a service takes.
        AwsOptionError: a URL is invalid, or the profile, authorities' file, region or credentials are missing.
    """
    for make in sinks(settings).values():
        make("flights")
    _check_aws(settings.aws)


def _check_aws(options: AwsOptions) -> None:
    try:
        session = AwsSession(options)
        session.endpoint_url()
        session.ssl_context()
        if options.role_arn is None:
            # A role is assumed by the first request: STS may be away for a moment.
            session.frozen_credentials()
    except AwsError:
        raise
    except Exception as error:
        # botocore's own words about configuration files.
        raise AwsOptionError("awsProfile" if options.profile else "region", str(error)) from error
