"""Which streams are read or written, and where they are."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from penstock.aws import exposed_endpoint, region_of_endpoint
from penstock.spark_plugin._options.credentials import GATEWAY_CREDENTIALS
from penstock.spark_plugin._options.values import option
from penstock.spark_plugin.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_STREAM_NAME = (r"(?a:[\w.-]{1,128})", "a name of 1 to 128 letters, digits, _ . and - (an ARN: `streamArn`)")
_DELIVERY_STREAM_NAME = (r"(?a:[\w.-]{1,64})", "a name of 1 to 64 letters, digits, _ . and -")
_QUEUE_URL = (r"https?://\S+/\S+", "the URL of a queue, https://sqs.<region>.amazonaws.com/<account>/<name>")
_REGION = (r"[a-z0-9-]+", "a region such as eu-west-1")
_NAMED_ONCE = dict.fromkeys(("streamArn", "streamName", "efoConsumerArn"), "streams are named once")

_connection = partial(option, acts="driver task", not_with=GATEWAY_CREDENTIALS)


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of streams and endpoints."""

    stream_name: tuple[str, ...] = option("strings", pattern=_STREAM_NAME, acts="everywhere")
    """The stream; several for reading. Required, unless `streamArn` is given."""
    region: str | None = option(pattern=_REGION, acts="everywhere")
    """AWS region. Default: the region in `endpointUrl`, if that is an endpoint of AWS, or else the environment's."""
    endpoint_url: str | None = option(acts="everywhere")
    """URL of the Kinesis API. Default: `AWS_ENDPOINT_URL_KINESIS`, or else the region's."""
    stream_arn: tuple[str, ...] = option("strings", acts="everywhere")
    """ARN of the stream, instead of its name; several, of one region, for reading. Needed for streams of other
    accounts. Its region is used when `region` is not given. With format `dynamodb-streams`, the ARN of a table's
    stream."""
    stream_name_pattern: str | None = option(acts="driver", only="read stream", not_with=_NAMED_ONCE)
    """Regular expression (of Python) for the whole names of the streams to read, instead of `streamName`. It is
    resolved with ListStreams when a run begins, and every `streamDiscoveryInterval` while the run continues; new
    streams begin at `addedStreamPosition`."""
    stream_discovery_interval: float | None = option("seconds", otherwise="5m", acts="driver", only="stream", minimum=0)
    """How often a running query looks for more streams that match `streamNamePattern`; 0: only when it begins.
    A run that ends on its own reads the streams that it began with."""
    delivery_stream_name: str | None = option(pattern=_DELIVERY_STREAM_NAME, acts="driver task gateway", only="write")
    """The delivery stream of format `firehose`, which also accepts `streamName`."""
    queue_url: str | None = option(pattern=_QUEUE_URL, acts="driver task gateway", only="write")
    """The URL of the queue of format `sqs`."""
    table_name: str | None = option(acts="driver task gateway")
    """The table that format `dynamodb` writes, or whose latest stream format `dynamodb-streams` reads."""
    ca_bundle: str | None = _connection()
    """PEM file of the authorities that verify the endpoint's certificate."""
    proxy_url: str | None = _connection(secret=True)
    """HTTP proxy to AWS, `http://HOST:PORT` or `http://USER:PASSWORD@HOST:PORT`, on the driver and on the executors,
    except for the hosts in `NO_PROXY`. Default: `HTTPS_PROXY`, or for an `http://` endpoint `HTTP_PROXY`, in each
    process's environment."""
    allow_insecure_endpoint: bool = option("boolean", "false", acts="driver")
    """Allows real credentials on an `http://` endpoint of another host, where records and tokens can be read on
    the way."""


def check_streams(options: "KinesisOptions", environ: Mapping[str, str]) -> None:
    """Check that an AWS endpoint is in the region, and that real credentials do not travel where they could be read.

    The result of the default chain is not known here, so only keys that look like an emulator's are not real.

    Raises:
        OptionError: the endpoint is in another region.
        OptionError: an endpoint on another host has no TLS, and the credentials look real.
    """
    if options.stream_discovery_interval is not None and options.stream_name_pattern is None:
        raise OptionError.missing("streamNamePattern", "$streamDiscoveryInterval needs it")
    region = region_of_endpoint(options.endpoint_url)
    if region is not None and options.region not in (None, region):
        reason = f"{options.endpoint_url} is in {region}, and requests would be for {options.region}"
        raise OptionError.contradictory("region", "endpointUrl", reason)
    if options.allow_insecure_endpoint:
        return
    endpoints: dict[str, str | None] = {}
    # With a gateway this process does not call Kinesis: the endpoint is only compared.
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
            cure="use https://, or set '$allowInsecureEndpoint' to true if the network path is safe",
        )


def check_pattern(options: "KinesisOptions") -> None:
    """Check a pattern for names of streams.

    Raises:
        OptionError: it is not a regular expression, or its interval is too short.
    """
    pattern, interval = options.stream_name_pattern, options.stream_discovery_interval
    if pattern is None:
        return
    if interval is not None and 0 < interval < 1:
        # ListStreams allows 5 calls a second for the whole account.
        raise OptionError.invalid("streamDiscoveryInterval", f"{interval:g} s", "1s or longer, or 0 for never")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError.invalid("streamNamePattern", pattern, f"a regular expression of Python: {error}") from error
    if options.efo_registration == "none" and options.record_publisher == "efo":
        reason = "the ARNs of consumers belong to streams that are named in $streamName"
        raise OptionError.contradictory("streamNamePattern", "efoRegistration", reason)
