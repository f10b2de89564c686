"""Options for tests: dummy keys for an emulator."""

from penstock.aws._options import AwsOptions


def emulator_options(endpoint_url: str, ca_bundle: str | None = None) -> AwsOptions:
    """Options with keys that only an emulator takes."""
    return AwsOptions(
        region="us-east-1",
        endpoint_url=endpoint_url,
        access_key_id="test",
        secret_access_key="test",
        ca_bundle=ca_bundle,
    )
