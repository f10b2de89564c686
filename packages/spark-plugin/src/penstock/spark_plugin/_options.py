"""The options of the data source, typed and checked."""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self

from penstock.spark_plugin._option_spec import OptionSpec
from penstock.spark_plugin._option_table import OPTIONS, SPARK_OWN
from penstock.spark_plugin._option_values import InitialPosition, InitialPositionType, parse_value
from penstock.spark_plugin.errors import (
    ContradictoryOptionsError,
    InvalidOptionError,
    MissingOptionError,
    UnknownOptionError,
)


@dataclass(frozen=True, kw_only=True)
class KinesisOptions:
    """The options of a Kinesis data source. The table in the package's README says what each one means.

    Durations of retries and of `max_time_in_buffer` are in milliseconds, others in seconds.

    Raises:
        OptionError: In `parse` and on construction, naming the option.
    """

    stream_name: tuple[str, ...]
    stream_arn: str | None = None
    region: str | None = None
    endpoint_url: str | None = None
    ca_bundle: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    aws_profile: str | None = None
    role_arn: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = None
    sts_endpoint_url: str | None = None
    web_identity_token_file: str | None = None
    initial_position: InitialPosition | None = None
    """None: LATEST for a stream, TRIM_HORIZON for a bounded read."""
    initial_timestamp: datetime | None = None
    ending_timestamp: datetime | None = None
    ending_position: InitialPosition | None = None
    """None: `ending_timestamp`, or else now, by the time of planning."""
    bounded_until: InitialPosition | None = None
    """As it was written; `ending_position` is the same."""
    continue_from: InitialPosition | None = None
    """As it was written; `initial_position` is the same."""
    record_publisher: str = "polling"
    efo_registration: str = "lazy"
    efo_consumer_name: str | None = None
    efo_consumer_arn: Mapping[str, str] = field(default_factory=dict)
    """By stream name."""
    subscribe_transport: str = "auto"
    fail_on_data_loss: bool = True
    include_encryption_type: bool = False
    max_partitions: int | None = None
    """None: half of the cores, at most 8."""
    max_records_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    buffer_bytes: int = 128 << 20
    buffer_bytes_per_shard: int = 8 << 20
    latest_offset_wait: float = 0.5
    idle_offset_interval: float = 300.0
    reader_endpoint: tuple[str, ...] = ()
    reader_host: str = "127.0.0.1"
    registry_endpoint: str | None = None
    registry_store: str | None = None
    sink_endpoint: str | None = None
    service_token: str | None = field(default=None, repr=False)
    service_ca_file: str | None = None
    job_id: str | None = None
    traceparent: str | None = None
    partition_key_column: str = "partitionKey"
    random_partition_key: bool = False
    max_batch_size: int = 500
    max_in_flight_requests: int = 50
    max_buffered_requests: int = 10_000
    max_batch_size_in_bytes: int = 5 << 20
    max_record_size_in_bytes: int = 1 << 20
    max_time_in_buffer: float = 5000.0
    fail_on_error: bool = False
    register_stream_consumer_max_retries: int = 10
    register_stream_consumer_backoff_base: float = 200.0
    register_stream_consumer_backoff_max: float = 1000.0
    register_stream_consumer_backoff_exponent: float = 1.5
    deregister_stream_consumer_max_retries: int = 10
    deregister_stream_consumer_backoff_base: float = 200.0
    deregister_stream_consumer_backoff_max: float = 1000.0
    deregister_stream_consumer_backoff_exponent: float = 1.5
    list_stream_consumers_max_retries: int = 10
    list_stream_consumers_backoff_base: float = 200.0
    list_stream_consumers_backoff_max: float = 1000.0
    list_stream_consumers_backoff_exponent: float = 1.5
    subscribe_to_shard_max_retries: int = 5
    subscribe_to_shard_backoff_base: float = 1000.0
    subscribe_to_shard_backoff_max: float = 2000.0
    subscribe_to_shard_backoff_exponent: float = 1.5

    def __post_init__(self) -> None:
        _check_credentials(self)
        _check_efo(self)
        _check_sizes(self)
        position = self.initial_position
        at_timestamp = position is not None and position.type is InitialPositionType.AT_TIMESTAMP
        if at_timestamp and position is not None and position.timestamp is None:
            raise MissingOptionError("initialTimestamp", "initialPosition is AT_TIMESTAMP without a time")
        ending = self.ending_position
        if ending is not None and ending.type is InitialPositionType.AT_TIMESTAMP and ending.timestamp is None:
            raise InvalidOptionError("endingPosition", "AT_TIMESTAMP", "with its time")
        for name, one in (("initialPosition", position), ("endingPosition", ending)):
            _check_streams(name, one, self.stream_name)
        if self.random_partition_key and self.partition_key_column != "partitionKey":
            raise ContradictoryOptionsError(
                ("randomPartitionKey", "partitionKeyColumn"), "a key is random or comes from a column"
            )

    @classmethod
    def parse(cls, options: Mapping[str, str], *, environ: Mapping[str, str] = os.environ) -> Self:
        """Options as a user wrote them: any letter case, canonical names or those of other connectors.

        `environ` gives the trace context (`TRACEPARENT`) when the option does not.
        """
        values, names, arns = _collect(options)
        if "stream_name" not in values:
            if "stream_arn" not in values:
                raise MissingOptionError("streamName", "it says which stream is read or written")
            values["stream_name"] = (_name_of_arn(values["stream_arn"]),)
        elif "stream_arn" in values and values["stream_name"] != (_name_of_arn(values["stream_arn"]),):
            raise ContradictoryOptionsError(("streamName", "streamArn"), "they name different streams")
        if arns:
            values["efo_consumer_arn"] = _restore_case(arns, values["stream_name"])
        if values.get("region") is None and "stream_arn" in values:
            values["region"] = values["stream_arn"].split(":")[3]
        _merge_initial_timestamp(values, names)
        _merge_positions(values, names)
        values.setdefault("traceparent", environ.get("TRACEPARENT"))
        return cls(**values)

    def aws_mapping(self) -> dict[str, str]:
        """What the AWS session takes, by canonical name. Holds secrets."""
        return {
            spec.name: value
            for spec in OPTIONS
            if spec.group == "credentials" or spec.name in ("region", "endpointUrl", "caBundle")
            if (value := getattr(self, field_name(spec.name))) is not None
        }


def field_name(option: str) -> str:
    """The field of `KinesisOptions` that holds an option."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", option).lower()


def nearest_option(name: str) -> str | None:
    """The canonical name of the option whose name, or an alias of it, resembles `name` most; None if none does."""
    match = difflib.get_close_matches(name.lower(), list(_BY_NAME), n=1, cutoff=0.6)
    return _BY_NAME[match[0]].name if match else None


def _collect(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    arns: dict[str, str] = {}
    for key, text in options.items():
        if key.lower() in SPARK_OWN:
            continue
        spec, suffix = _find(key)
        if spec.prefix:
            arns[suffix] = parse_value(spec, text)
            continue
        name = field_name(spec.name)
        value = parse_value(spec, text)
        if name in values and values[name] != value:
            raise ContradictoryOptionsError((written[name], key), f"both are {spec.name!r}, with different values")
        values[name], written[name] = value, key
    return values, written, arns


def _find(key: str) -> tuple[OptionSpec, str]:
    low = key.lower()
    spec = _BY_NAME.get(low)
    if spec is not None and not spec.prefix:
        return spec, ""
    for prefix, prefixed in _BY_PREFIX.items():
        if low.startswith(prefix) and len(low) > len(prefix):
            return prefixed, key[len(prefix) :]
    raise UnknownOptionError(key, nearest_option(key))


def _restore_case(arns: Mapping[str, str], streams: tuple[str, ...]) -> dict[str, str]:
    """Spark hands option keys over in lower case, but stream names have upper case too."""
    restored: dict[str, str] = {}
    for suffix, arn in arns.items():
        matches = [name for name in streams if name == suffix] or [
            name for name in streams if name.lower() == suffix.lower()
        ]
        if len(matches) != 1:
            raise InvalidOptionError(f"efoConsumerArn.{suffix}", arn, "for one of the streams in streamName")
        restored[matches[0]] = arn
    return restored


def _name_of_arn(arn: str) -> str:
    _, slash, name = arn.partition(":stream/")
    if arn.count(":") < 5 or not slash or not name:
        raise InvalidOptionError("streamArn", arn, "arn:aws:kinesis:<region>:<account>:stream/<name>")
    return name


def _merge_initial_timestamp(values: dict[str, Any], written: Mapping[str, str]) -> None:
    time = values.get("initial_timestamp")
    if time is None:
        return
    position = values.get("initial_position", InitialPosition(InitialPositionType.AT_TIMESTAMP))
    if position.type is not InitialPositionType.AT_TIMESTAMP or position.timestamp not in (None, time):
        raise ContradictoryOptionsError(
            (written.get("initial_position", "initialPosition"), written["initial_timestamp"]),
            "the time belongs to AT_TIMESTAMP, and is given once",
        )
    values["initial_position"] = InitialPosition(InitialPositionType.AT_TIMESTAMP, time)


def _check_streams(name: str, position: InitialPosition | None, streams: tuple[str, ...]) -> None:
    named = set(position.streams or ()) if position is not None else set()
    if named and named != set(streams) and not (named == {""} and len(streams) == 1):
        raise InvalidOptionError(name, sorted(named), "sequence numbers of the streams in streamName, all of them")


def _merge_positions(values: dict[str, Any], written: Mapping[str, str]) -> None:
    for name, into in (("continue_from", "initial_position"), ("bounded_until", "ending_position")):
        if name in values:
            position = values[name]
            if values.setdefault(into, position) != position:
                raise ContradictoryOptionsError((written[name], written.get(into, into)), "they say the same thing")
    ending = values.get("ending_position")
    if ending is not None and "ending_timestamp" in values:
        raise ContradictoryOptionsError(("endingPosition", written["ending_timestamp"]), "a read ends once")


def _check_credentials(options: KinesisOptions) -> None:
    if (options.aws_access_key_id is None) != (options.aws_secret_access_key is None):
        missing = "awsSecretAccessKey" if options.aws_secret_access_key is None else "awsAccessKeyId"
        raise MissingOptionError(missing, "an access key has two halves")
    if options.aws_session_token is not None and options.aws_access_key_id is None:
        raise MissingOptionError("awsAccessKeyId", "awsSessionToken belongs to a key")
    if options.aws_profile is not None and options.aws_access_key_id is not None:
        raise ContradictoryOptionsError(("awsProfile", "awsAccessKeyId"), "credentials come from one place")
    for name in ("roleSessionName", "roleExternalId", "webIdentityTokenFile", "stsEndpointUrl"):
        if getattr(options, field_name(name)) is not None and options.role_arn is None:
            raise MissingOptionError("roleArn", f"{name} belongs to a role")


def _check_efo(options: KinesisOptions) -> None:
    arns = dict(options.efo_consumer_arn)
    if options.record_publisher != "efo":
        return
    if options.efo_registration == "none":
        for stream in options.stream_name:
            if stream not in arns:
                raise MissingOptionError(f"efoConsumerArn.{stream}", "efoRegistration is none")
    elif arns:
        raise ContradictoryOptionsError(
            ("efoConsumerArn", "efoRegistration"), "ARNs are given with efoRegistration=none alone"
        )
    elif options.efo_consumer_name is None:
        raise MissingOptionError("efoConsumerName", "recordPublisher is efo; each query has its own consumer")


def _check_sizes(options: KinesisOptions) -> None:
    for smaller, larger in (
        ("bufferBytesPerShard", "bufferBytes"),
        ("maxRecordSizeInBytes", "maxBatchSizeInBytes"),
        ("maxBatchSize", "maxBufferedRequests"),
    ):
        if getattr(options, field_name(smaller)) > getattr(options, field_name(larger)):
            raise ContradictoryOptionsError((smaller, larger), f"{larger} must hold at least one {smaller}")


def _names(specs: tuple[OptionSpec, ...]) -> dict[str, OptionSpec]:
    return {name.lower(): spec for spec in specs for name in (spec.name, *spec.aliases)}


_BY_NAME = _names(OPTIONS)
_BY_PREFIX = {name + ".": spec for name, spec in _BY_NAME.items() if spec.prefix}
