"""How AWS and the services are reached, from the options."""

from pathlib import Path

from penstock.aws import AwsOptions
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._options import KinesisOptions


def aws_options(options: KinesisOptions) -> AwsOptions:
    """How AWS is reached."""
    return AwsOptions.from_mapping(options.aws_mapping())


def service_security(options: KinesisOptions) -> ClientSecurity:
    """How the services are reached."""
    return ClientSecurity(
        ca_file=Path(options.service_ca_file) if options.service_ca_file else None, token=options.service_token
    )
