"""Options of AWS where a session is needed, and the other way round: an error at once, with the parameter's name."""

from penstock.aws import AwsOptions, AwsSession
from penstock.efo_consumer import (
    GlueDecoder,
    KinesisBackend,
)

OPTIONS = AwsOptions(region="us-east-1", endpoint_url="http://127.0.0.1:1")


def test_options_and_sessions_are_taken_where_they_belong() -> None:
    """A subclass and the default are fine."""

    class MySession(AwsSession):
        """A session of an application."""

    GlueDecoder()
    GlueDecoder(OPTIONS)
    KinesisBackend(MySession(OPTIONS))
