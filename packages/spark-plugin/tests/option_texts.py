"""A text for every option that is not its default, with the other options that it needs."""

from collections.abc import Mapping

from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._options.foreign import foreign_options
from penstock.spark_plugin._options.spec import OptionSpec, OptionType
from penstock.spark_plugin._options.table import BY_NAME

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/s"
CONSUMER = f"{ARN}/consumer/c:1700000000"
EFO = {"recordPublisher": "efo", "efoConsumerName": "app"}
_OTHER_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/other"
_TEXTS = {
    "streamName": "other",
    "queueUrl": "https://sqs.us-east-1.amazonaws.com/1/q",
    "streamArn": _OTHER_ARN,
    "streamNamePattern": "s.*",
    "region": "eu-west-1",
    "endpointUrl": "http://127.0.0.1:4567",
    "proxyUrl": "http://127.0.0.1:3128",
    "awsCredentialsProvider": "profile",
    "credentialsProvider": "a.b:c",
    "roleArn": "arn:aws:iam::123456789012:role/r",
    "roleSessionName": "name",
    "roleCredentialsProvider": "profile",
    "roleSessionDuration": "20m",
    "roleSessionTags": "a=b",
    "stsEndpointUrl": "http://127.0.0.1:1",
    "initialPosition": "TRIM_HORIZON",
    "initialTimestamp": "2026-01-01",
    "endingPosition": "LATEST",
    "addedStreamPosition": "LATEST",
    "efoConsumerArn": f"{ARN}/consumer/other:1",
    "efoRegistration": "eager",
    "getRecordsInterval": "2s",
    "bufferBytes": "256m",
    "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
    "serviceToken": "t" * 32,
    "csvDelimiter": ";",
    "glueEndpointUrl": "http://127.0.0.1:1",
    "maxBatchSizeInBytes": "3m",
    "readerEndpoint": "reader:1",
    "registryEndpoint": "registry:1",
    "sinkEndpoint": "sink:1",
}
_NEEDED = {
    "streamArn": {"streamName": "other"},
    "streamNamePattern": {"streamName": ""},
    "streamDiscoveryInterval": {"streamName": "", "streamNamePattern": "s.*"},
    "awsCredentialsProvider": {"awsProfile": "p"},
    "roleCredentialsProvider": {"awsProfile": "p"},
    "efoConsumerArn": {"recordPublisher": "efo", "efoRegistration": "none", "efoConsumerArn.s": CONSUMER},
    "csvDelimiter": {"valueFormat": "csv"},
    "schemaMessage": {"valueFormat": "protobuf", "schemaRegistry": "r"},
    "registryEndpoint": EFO,
}


def text_of(spec: OptionSpec) -> str:
    """A value of the option that is not its default."""
    if spec.name in _TEXTS:
        return _TEXTS[spec.name]
    if spec.type is OptionType.BOOLEAN:
        return "false" if spec.default == "true" else "true"
    if spec.choices:
        return next(one for one in spec.choices if one != spec.default)
    return "90s" if spec.name.endswith("BackoffMax") else "777" if spec.name == "maxBufferedRequests" else "7"


def given(spec: OptionSpec) -> tuple[dict[str, str], dict[str, str]]:
    """The option with a value and what it needs; and what it needs alone."""
    if spec.name == "recordPublisher":
        return EFO, {}  # without it the name of a consumer is refused
    needed = dict(_NEEDED.get(spec.name, {}))
    other, _, value = spec.needs.partition("=")
    if other == "recordPublisher" and spec.name not in _NEEDED:
        needed |= EFO
    elif other and other not in needed:
        mutual = BY_NAME[other].needs == spec.name
        text = {other: value} if value else {}
        needed |= {other: "other", spec.name: "other"} if mutual else given(BY_NAME[other])[0] | text | needed
    own = f"{spec.name}.s" if spec.prefix else spec.name
    return {**needed, own: text_of(spec)}, needed


def names(spec: OptionSpec) -> tuple[str, ...]:
    """The name, and the names in other connectors that take the same texts."""
    others = (one for one in foreign_options() if one.option == spec.name)
    same = [one.name for one in others if not (one.convert or one.unit or one.values) and one.name != spec.name]
    return (spec.name, *same)


def parse(options: Mapping[str, str]) -> KinesisOptions:
    """Options of a stream in a region; empty texts leave an option out."""
    all_of_them = {"streamName": "s", "region": "us-east-1", **options}
    return KinesisOptions.parse({name: text for name, text in all_of_them.items() if text}, environ={})
