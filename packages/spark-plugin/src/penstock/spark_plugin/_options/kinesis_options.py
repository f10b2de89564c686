"""The options of the data source, typed and checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from penstock.aws import region_of_endpoint
from penstock.spark_plugin._options.checks import (
    check_columns,
    check_credentials,
    check_efo,
    check_endpoints,
    check_environment,
    check_homes,
    check_positions,
    check_reading,
    check_retries,
    check_services,
    check_sizes,
    check_stream,
    check_trace,
    check_writing,
)
from penstock.spark_plugin._options.parsing import (
    collect,
    merge_initial_timestamp,
    merge_positions,
    names_of_arns,
    region_of_arns,
    restore_case,
)
from penstock.spark_plugin._options.spec import field_name as field_name
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._options.values import PositionOption
from penstock.spark_plugin.errors import ContradictoryOptionsError, MissingOptionError, OptionError, in_own_words

if TYPE_CHECKING:
    from penstock.efo_consumer import Deaggregation

_CHOICES_OF_CREDENTIALS = ("awsCredentialsProvider", "roleCredentialsProvider")
"""They are checked here, and no business of the session."""

_CONSUMER_PREFIX = "penstock-"

_COUNTED = tuple(
    (".".join(spec.flink.split(".")[2:]), spec.name)
    for spec in OPTIONS
    if spec.flink and spec.name.endswith("MaxRetries")
)
"""Options that limit attempts, by the keys that the packages below tell them by: FLIP-128's, without their family."""


@dataclass(frozen=True, kw_only=True)
class KinesisOptions:
    """The options of a Kinesis data source. The table in the package's README says what each one means.

    Durations of retries and of `max_time_in_buffer` are in milliseconds, others in seconds.

    Raises:
        OptionError: an option is wrong, in `parse` and on construction; the error names it.
    """

    stream_name: tuple[str, ...]
    """Empty with `stream_name_pattern`, until a run has resolved it."""
    delivery_stream_name: str | None = None
    """None for format firehose too, where `stream_name` has it."""
    table_name: str | None = None
    """With format dynamodb-streams; `stream_name` has it, too."""
    stream_arn: tuple[str, ...] = ()
    stream_name_pattern: str | None = None
    stream_discovery_interval: float | None = None
    """None: 5 minutes; 0: never while a query runs."""
    region: str | None = None
    endpoint_url: str | None = None
    ca_bundle: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    allow_insecure_endpoint: bool = False
    aws_credentials_provider: str = "auto"
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    aws_profile: str | None = None
    credentials_provider: str | None = None
    role_arn: str | None = None
    """Several roles are separated by commas."""
    role_credentials_provider: str = "auto"
    role_session_duration: float | None = None
    role_session_tags: str | None = None
    role_session_name: str | None = None
    role_external_id: str | None = field(default=None, repr=False)
    sts_endpoint_url: str | None = None
    web_identity_token_file: str | None = None
    initial_position: PositionOption | None = None
    """None: LATEST for a stream, TRIM_HORIZON for a bounded read."""
    initial_timestamp: datetime | None = None
    initial_timestamp_format: str | None = None
    ending_timestamp: datetime | None = None
    ending_position: PositionOption | None = None
    """None: `ending_timestamp`, or else now, by the time of planning."""
    bounded_until: PositionOption | None = None
    """As it was written; `ending_position` is the same."""
    continue_from: PositionOption | None = None
    """As it was written; `initial_position` is the same."""
    record_publisher: str = "polling"
    efo_registration: str = "lazy"
    efo_consumer_name: str | None = None
    """None: made of the query's name in its checkpoint; see `consumer_name`."""
    efo_consumer_name_prefix: str | None = None
    """As it was written; `efo_consumer_name` has it, too."""
    efo_consumer_arn: Mapping[str, str] = field(default_factory=dict)
    """By stream name."""
    subscribe_transport: str = "auto"
    get_records_max_records: int = 10_000
    get_records_interval: float = 200.0
    shard_discovery_interval: float = 10.0
    fail_on_data_loss: bool = True
    retry_patience: float = 600.0
    """0: for ever."""
    columns: str = "penstock"
    include_encryption_type: bool = False
    deaggregate: "Deaggregation" = True
    adaptive_reads: bool = True
    shard_ids: tuple[str, ...] = ()
    """Empty: all."""
    filter_push_down: bool = False
    added_stream_position: PositionOption | None = None
    """None: `initial_position`, or TRIM_HORIZON for streams that a pattern finds."""
    min_partitions: int | None = None
    max_partitions: int | None = None
    """None: half of the cores, at most 8."""
    max_records_per_batch: int | None = None
    max_records_per_shard_per_batch: int | None = None
    max_shard_skew: float | None = 60.0
    """None: off."""
    min_records_per_batch: int | None = None
    max_trigger_delay: float | None = None
    """None: 15 minutes."""
    max_bytes_per_batch: int | None = None
    buffer_bytes: int = 128 << 20
    buffer_bytes_per_shard: int = 8 << 20
    spill_bytes: int = 0
    spill_folder: str | None = None
    latest_offset_wait: float = 0.5
    idle_offset_interval: float = 300.0
    reader_endpoint: tuple[str, ...] = ()
    executor_readers: bool = True
    reader_host: str | None = None
    """None: loopback in local mode, else the driver's own; see `_addresses`."""
    reader_bind_address: str | None = None
    """None: `spark.driver.bindAddress`, or else the same as the host."""
    reader_port: int = 0
    """0: the system picks one."""
    registry_endpoint: str | None = None
    registry_store: str | None = None
    sink_endpoint: str | None = None
    service_token: str | None = field(default=None, repr=False)
    service_token_file: str | None = None
    service_ca_file: str | None = None
    service_certificate_file: str | None = None
    service_private_key_file: str | None = None
    job_id: str | None = None
    traceparent: str | None = None
    partition_key_column: str = "partitionKey"
    random_partition_key: bool = False
    fixed_partition_key: str | None = None
    value_format: str | None = None
    value_columns: tuple[str, ...] = ()
    csv_delimiter: str = ","
    avro_encoding: str = "binary"
    schema_registry: str | None = None
    schema_name: str | None = None
    """None: the stream's."""
    schema_version: int | None = None
    schema_message: str | None = None
    schema_auto_register: bool = False
    schema_compatibility: str = "backward"
    schema_compression: str = "none"
    glue_endpoint_url: str | None = None
    record_delimiter: str | None = None
    record_ids: bool = False
    dead_letter_path: str | None = None
    max_attempts: int | None = None
    time_to_live: float | None = None
    stall_timeout: float = 120.0
    aggregation: bool = False
    wire_format: str | None = None
    """None: the endpoint decides."""
    max_records_per_second: float | None = None
    max_bytes_per_second: int | None = None
    sink_rate_strategy: str | None = None
    """None: that which suits the destination."""
    sink_rate_target: str | None = None
    sink_initial_rate: int | None = None
    sink_increase_rate: int | None = None
    sink_decrease_factor: float | None = None
    sink_rate_threshold: int | None = None
    max_batch_size: int = 500
    max_in_flight_requests: int = 50
    max_buffered_requests: int = 10_000
    max_batch_size_in_bytes: int = 5 << 20
    max_record_size_in_bytes: int = 1 << 20
    max_time_in_buffer: float = 5000.0
    fail_on_error: bool = False
    register_stream_consumer_timeout: float = 60.0
    deregister_stream_consumer_timeout: float = 60.0
    subscribe_to_shard_timeout: float = 10.0
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
    subscribe_to_shard_max_retries: int | None = None
    """None, here and below: `retry_patience` decides."""
    subscribe_to_shard_backoff_base: float = 1000.0
    subscribe_to_shard_backoff_max: float = 2000.0
    subscribe_to_shard_backoff_exponent: float = 1.5
    get_records_max_retries: int | None = None
    get_records_backoff_base: float = 300.0
    get_records_backoff_max: float = 1000.0
    get_records_backoff_exponent: float = 1.5
    get_shard_iterator_max_retries: int | None = None
    get_shard_iterator_backoff_base: float = 300.0
    get_shard_iterator_backoff_max: float = 1000.0
    get_shard_iterator_backoff_exponent: float = 1.5
    written: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """No option: the names that the user wrote, by those of ours. What is not there was left out, in `parse`."""

    def __post_init__(self) -> None:
        check_credentials(self)
        check_services(self)
        check_efo(self)
        check_homes(self)
        check_sizes(self)
        check_retries(self)
        check_positions(self)
        check_columns(self)
        check_writing(self)
        check_reading(self)

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, environ: Mapping[str, str] | None = None, stream_required: bool = True
    ) -> Self:
        """Options as a user wrote them: any letter case, canonical names or those of other connectors.

        `environ` gives the trace context (`TRACEPARENT`) when the option does not. Without `stream_required` the
        stream may be left out, as rows that are written may name theirs; then `stream_name` is empty.
        """
        environ = os.environ if environ is None else environ
        values, names, given, arns = collect(options)
        written = {spec.name: names[name] for spec in OPTIONS if (name := field_name(spec.name)) in names}
        written |= {name: own for name, own in names.items() if "." in name}
        values["written"] = written
        try:
            parsed = cls._of(values, names, arns, environ, stream_required=stream_required)
            check_homes(parsed, given)
        except OptionError as error:
            error.rename(values["written"])
            raise
        return parsed

    @classmethod
    def _of(
        cls,
        values: dict[str, Any],
        names: Mapping[str, str],
        arns: Mapping[str, str],
        environ: Mapping[str, str],
        *,
        stream_required: bool,
    ) -> Self:
        if "stream_name" not in values:
            if "stream_arn" in values:
                values["stream_name"] = names_of_arns(values["stream_arn"])
            elif "stream_name_pattern" in values:
                values["stream_name"] = ()
            elif stream_required:
                raise MissingOptionError("streamName", "it says which stream is read or written")
            else:
                values["stream_name"] = ()
        elif "stream_arn" in values and values["stream_name"] != names_of_arns(values["stream_arn"]):
            raise ContradictoryOptionsError(("streamName", "streamArn"), "they name different streams")
        elif "stream_name_pattern" in values:
            raise ContradictoryOptionsError(("streamName", "streamNamePattern"), "streams are named once")
        if arns:
            values["efo_consumer_arn"] = restore_case(arns, values["stream_name"])
        values["region"] = region_of_arns(values.get("stream_arn", ()), values.get("region"))
        if values["region"] is None:
            values["region"] = region_of_endpoint(values.get("endpoint_url"))
        if "efo_consumer_name" in values:
            values["efo_consumer_name"] = values.get("efo_consumer_name_prefix", "") + values["efo_consumer_name"]
        merge_initial_timestamp(values, names)
        merge_positions(values, names)
        if "traceparent" in values:
            check_trace(values["traceparent"])
        values.setdefault("traceparent", environ.get("TRACEPARENT"))
        parsed = cls(**values)
        check_stream(parsed)
        check_environment(parsed, environ)
        check_endpoints(parsed, environ)
        return parsed

    @property
    def stream_service(self) -> str:
        """The service that has the streams, as boto3 names it."""
        if self.table_name is None:
            return "kinesis"
        # Processes that read Kinesis are spared it.
        from penstock.efo_consumer import DYNAMODB_STREAMS

        return DYNAMODB_STREAMS

    def in_own_words(self, text: str) -> str:
        """What is told of these options, with their names as the user wrote them."""
        return in_own_words(text, {**{key: self.written.get(name, name) for key, name in _COUNTED}, **self.written})

    def arn_of(self, stream: str) -> str | None:
        """The ARN of a stream, where it was given."""
        return dict(zip(self.stream_name, self.stream_arn, strict=False)).get(stream)

    def alone(self, stream: str, position: PositionOption | None = None) -> Self:
        """The options of one of the streams; it begins at `position`, or as they say."""
        begin, end = self.initial_position if position is None else position, self.ending_position
        arn = self.arn_of(stream)
        return replace(
            self,
            stream_name=(stream,),
            stream_arn=(arn,) if arn is not None else (),
            initial_position=begin.of((stream,)) if begin is not None else None,
            ending_position=end.of((stream,)) if end is not None else None,
            efo_consumer_arn={key: one for key, one in self.efo_consumer_arn.items() if key == stream},
        )

    def consumer_name(self, query: str) -> str:
        """The name of the stream consumer of a query, which has such a name in its checkpoint."""
        if self.efo_consumer_name is not None:
            return self.efo_consumer_name
        return f"{_CONSUMER_PREFIX if self.efo_consumer_name_prefix is None else self.efo_consumer_name_prefix}{query}"

    def aws_mapping(self) -> dict[str, str]:
        """What the AWS session takes, by canonical name. Holds secrets."""
        return {
            spec.name: f"{value:.0f}" if isinstance(value, float) else value
            for spec in OPTIONS
            if (spec.group == "credentials" and spec.name not in _CHOICES_OF_CREDENTIALS)
            or spec.name in ("region", "endpointUrl", "caBundle", "proxyUrl")
            if (value := getattr(self, field_name(spec.name))) is not None
        }
