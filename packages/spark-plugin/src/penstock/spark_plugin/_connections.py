"""How AWS and the services are reached, from the options."""

from pathlib import Path

from penstock.aws import AwsOptions
from penstock.rpc import ClientSecurity
from penstock.spark_plugin._options._kinesis_options import KinesisOptions


def aws_options(options: KinesisOptions) -> AwsOptions:
    """How AWS is reached."""
    return AwsOptions.from_mapping(options.aws_mapping())


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
