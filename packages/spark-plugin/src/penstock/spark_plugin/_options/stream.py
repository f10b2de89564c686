"""Which streams are read or written, and where they are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.aws import exposed_endpoint, region_of_endpoint
from penstock.spark_plugin._options.spec import (
    BOOLEAN,
    DRIVER,
    EVERYWHERE,
    GATEWAY,
    OWN_CREDENTIALS,
    READ,
    SECONDS,
    STREAM,
    STRINGS,
    TASK,
    WRITE,
)
from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_STREAM_NAME = (r"(?a:[\w.-]{1,128})", "a name of 1 to 128 letters, digits, _ . and - (an ARN: `streamArn`)")
_DELIVERY_STREAM_NAME = (r"(?a:[\w.-]{1,64})", "a name of 1 to 64 letters, digits, _ . and -")
_QUEUE_URL = (r"https?://\S+/\S+", "the URL of a queue, https://sqs.<region>.amazonaws.com/<account>/<name>")
_REGION = (r"[a-z0-9-]+", "a region such as eu-west-1")

_connection = partial(option, acts=(DRIVER, TASK), refused_with=(OWN_CREDENTIALS,))


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of streams and endpoints."""

    stream_name: tuple[str, ...] = option(
        STRINGS,
        pattern=_STREAM_NAME,
        acts=EVERYWHERE,
        flink="stream",
        databricks="streamName",
        aws="kinesis.streamName",
    )
    """The stream; several for reading. Required, unless `streamArn` is given."""
    delivery_stream_name: str | None = option(
        pattern=_DELIVERY_STREAM_NAME, acts=(DRIVER, TASK, GATEWAY), only=(WRITE,)
    )
    """The delivery stream of format `firehose`; `streamName` is understood there too."""
    queue_url: str | None = option(pattern=_QUEUE_URL, acts=(DRIVER, TASK, GATEWAY), only=(WRITE,))
    """The URL of the queue of format `sqs`."""
    table_name: str | None = option(acts=(DRIVER, TASK, GATEWAY))
    """The table that format `dynamodb` writes, or whose latest stream format `dynamodb-streams` reads."""
    stream_arn: tuple[str, ...] = option(STRINGS, acts=EVERYWHERE, flink="stream.arn", databricks="streamARN")
    """ARN of the stream, instead of its name; several, of one region, for reading. Needed for streams of other
    accounts. Its region is used when `region` is not given. With format `dynamodb-streams` that of a table's
    stream."""
    stream_name_pattern: str | None = option(acts=(DRIVER,), only=(READ, STREAM))
    """Regular expression (of Python) for the whole names of the streams to read, instead of `streamName`.
    ListStreams is asked as a run begins, and every `streamDiscoveryInterval` while it goes on; streams that it
    did not know before begin at `addedStreamPosition`."""
    stream_discovery_interval: float | None = option(SECONDS, otherwise="5m", acts=(DRIVER,), only=(STREAM,), minimum=0)
    """How often a running query looks for further streams that match `streamNamePattern`; 0: only as it begins.
    A run that ends by itself reads those that it began with."""
    region: str | None = option(pattern=_REGION, acts=EVERYWHERE, flink="aws.region", databricks="region")
    """AWS region. Default: that in `endpointUrl`, if it is AWS's own, or else the environment's."""
    endpoint_url: str | None = option(
        acts=EVERYWHERE, flink="aws.endpoint", databricks="endpoint", aws="kinesis.endpointUrl"
    )
    """URL of the Kinesis API. Default: `AWS_ENDPOINT_URL_KINESIS`, or else the region's."""
    ca_bundle: str | None = _connection()
    """PEM file of the authorities that the endpoint's certificate is checked by."""
    proxy_url: str | None = _connection(secret=True)
    """HTTP proxy on the way to AWS, `http://HOST:PORT` or `http://USER:PASSWORD@HOST:PORT`, on the driver and
    on the executors, but for the hosts of `NO_PROXY`. Default: `HTTPS_PROXY`, or for an `http://` endpoint
    `HTTP_PROXY`, of each process's environment."""
    allow_insecure_endpoint: bool = option(BOOLEAN, "false", acts=(DRIVER,))
    """Lets real credentials be used on an `http://` endpoint of another host, where records and tokens can be
    read on the way."""


def check_streams(options: "KinesisOptions", environ: Mapping[str, str]) -> None:
    """Check that an endpoint of AWS is in the region, and that real credentials do not go where they could be read.

    Nothing is known here of what the default chain will find: only keys that look like an emulator's are not real.

    Raises:
        OptionError: the endpoint is in another region.
        OptionError: an endpoint on another host has no TLS, and the credentials look real.
    """
    if options.stream_discovery_interval is not None and options.stream_name_pattern is None:
        raise OptionError.missing(
            "streamNamePattern",
            "$streamDiscoveryInterval is how often a running query looks for streams that match it",
        )
    region = region_of_endpoint(options.endpoint_url)
    if region is not None and options.region not in (None, region):
        raise OptionError.contradictory(
            "region",
            "endpointUrl",
            f"{options.endpoint_url} is in {region}, and requests would be for {options.region}",
        )
    if options.allow_insecure_endpoint:
        return
    endpoints: dict[str, str | None] = {}
    # With a gateway this process calls no Kinesis at all: the endpoint is only compared.
    if options.sink_endpoint is None:
        given = options.endpoint_url or environ.get("AWS_ENDPOINT_URL_KINESIS") or environ.get("AWS_ENDPOINT_URL")
        endpoints |= {"endpointUrl": given, "stsEndpointUrl": options.sts_endpoint_url}
    endpoints["glueEndpointUrl"] = options.glue_endpoint_url
    exposed = exposed_endpoint(
        endpoints,
        access_key_id=options.aws_access_key_id or environ.get("AWS_ACCESS_KEY_ID", ""),
        profile=options.aws_profile,
    )
    if exposed is not None:
        name, host = exposed
        raise OptionError.of(
            "DANGEROUS_OPTION",
            option=name,
            danger=f"records and session tokens would go to {host} without encryption, with credentials that may be "
            "real",
            cure="use https://, or set '$allowInsecureEndpoint' to true if the way there is safe",
        )


def check_pattern(options: "KinesisOptions") -> None:
    """Check a pattern for names of streams.

    Raises:
        OptionError: it is no regular expression, or streams are named in another way as well.
    """
    pattern, interval = options.stream_name_pattern, options.stream_discovery_interval
    if pattern is None:
        return
    if interval is not None and 0 < interval < 1:
        # ListStreams has 5 calls a second, which all of the account share.
        raise OptionError.invalid("streamDiscoveryInterval", f"{interval:g} s", "1s or longer, or 0 for never")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError.invalid("streamNamePattern", pattern, f"a regular expression of Python: {error}") from error
    if options.stream_arn:
        raise OptionError.contradictory("streamNamePattern", "streamArn", "streams are named once")
    if options.efo_registration == "none" and options.record_publisher == "efo":
        raise OptionError.contradictory(
            "streamNamePattern",
            "efoRegistration",
            "the ARNs of consumers belong to streams that are named in $streamName",
        )
    if options.efo_consumer_arn:
        raise OptionError.contradictory(
            "streamNamePattern", "efoConsumerArn", "ARNs belong to streams that are named in $streamName"
        )
