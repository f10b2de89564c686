"""The data source `dynamodb-streams`."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.spark_plugin._options.kinesis_options import KinesisOptions
from penstock.spark_plugin._options.parsing import check_use, nearest, resolve, spelled
from penstock.spark_plugin._options.services import PROOFS
from penstock.spark_plugin._options.spec import READS, Use
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._options.values import PositionOptionType, parse_value
from penstock.spark_plugin._reading.columns import CHANGES
from penstock.spark_plugin._schema import CHANGE_SCHEMA, check_read_schema
from penstock.spark_plugin._signals import limit_collections
from penstock.spark_plugin._user_errors import without_frames
from penstock.spark_plugin.errors import OptionError, SparkPluginError

_FORMAT = "format 'dynamodb-streams'"
_TABLE_NAME = re.compile(r"[\w.-]{3,255}", re.ASCII)
_STREAM_ARN = re.compile(
    r"arn:[\w-]+:dynamodb:(?P<region>[\w-]+):\d{12}:table/(?P<table>[\w.-]{3,255})/stream/[\w.:+-]+", re.ASCII
)
_ARN_RULE = "the ARN of one stream: arn:aws:dynamodb:<region>:<account>:table/<table>/stream/<label>"
_MAX_RECORDS = 1000
_ENDS = (PositionOptionType.LATEST, PositionOptionType.TRIM_HORIZON)
_NO_TIMES = (
    "LATEST or TRIM_HORIZON: DynamoDB Streams finds no record by its time. Read from TRIM_HORIZON, and filter by "
    "approximateCreationDateTime"
)

_FAN_OUT = (spec.name for spec in OPTIONS if spec.needs == "recordPublisher=efo")
_REASONS = {
    name: reason
    for reason, names in {
        "which finds no record by its time: filter by approximateCreationDateTime": (
            "initialTimestamp",
            "endingPosition",
        ),
        "which has no enhanced fan-out": ("recordPublisher", "registryEndpoint", *_FAN_OUT),
        "whose queries read without services: reader services follow streams of Kinesis": (
            *("readerEndpoint", "executorReaders", *PROOFS),
        ),
        "which reads the stream of a table: name it by 'tableName' or 'streamArn'": (
            *("streamName", "streamNamePattern", "streamDiscoveryInterval", "addedStreamPosition"),
        ),
        "whose rows are changes, and not records of Kinesis": ("columns", "includeEncryptionType", "deaggregate"),
        "whose shards come and go, and are read whole": ("shardIds", "minPartitions"),
    }.items()
    for name in names
}
"""Options of reads of Kinesis that have no effect here, and why."""

_TAKEN = {spec.name for spec in OPTIONS if spec.name not in _REASONS and any(use in spec.uses for use in READS)}


def dynamodb_options(options: Mapping[str, str], *, environ: Mapping[str, str] | None = None) -> KinesisOptions:
    """The options of a reader of a table's stream.

    Raises:
        OptionError: an option is for writing, or for what DynamoDB Streams does not have; the error says why.
        OptionError: as in `KinesisOptions.parse`.
    """
    arn: tuple[str, str] | None = None
    for key, name, text, spec in resolve(options):
        if spec.name not in _TAKEN:
            near = None if spec.name in _REASONS else nearest(spec.name, _TAKEN)
            where = f"{_FORMAT}, {_REASONS.get(spec.name, 'which reads the stream of a table')}"
            raise OptionError.irrelevant(name if spec.prefix else spelled(key), near, where)
        if name == "initialPosition" and parse_value(spec, text).type not in _ENDS:
            raise OptionError.invalid(spelled(key), text, _NO_TIMES)
        if name == "streamArn":
            arn = spelled(key), text.strip()
    given = {key: text for key, text in options.items() if arn is None or arn[0] != spelled(key)}
    parsed = KinesisOptions.parse(given, environ=_environment(environ), stream_required=False)
    _check_size(parsed)
    table, region = parsed.table_name, parsed.region
    if table is not None and _TABLE_NAME.fullmatch(table) is None:
        raise OptionError.invalid("tableName", table, "a name of 3 to 255 letters, digits, _ . and -")
    if arn is not None:
        parts = _STREAM_ARN.fullmatch(arn[1])
        if parts is None:
            raise OptionError.invalid(arn[0], arn[1], _ARN_RULE)
        if table not in (None, parts["table"]):
            raise OptionError.contradictory("tableName", arn[0], f"the stream is one of table {parts['table']}")
        if region not in (None, parts["region"]):
            raise OptionError.contradictory("region", arn[0], f"the stream is in {parts['region']}, not in {region}")
        table, region = parts["table"], parts["region"]
    if table is None:
        raise OptionError.missing("tableName", "it says whose stream is read; or give its ARN as '$streamArn'")
    return replace(
        parsed,
        table_name=table,
        region=region,
        stream_name=(table,),
        stream_arn=() if arn is None else (arn[1],),
        columns=CHANGES,
        deaggregate=False,
        executor_readers=False,
        get_records_max_records=min(parsed.get_records_max_records, _MAX_RECORDS),
    )


def _check_size(parsed: KinesisOptions) -> None:
    most, default = parsed.get_records_max_records, KinesisOptions.get_records_max_records
    if _MAX_RECORDS < most != default:
        name = parsed.written.get("getRecordsMaxRecords", "getRecordsMaxRecords")
        raise OptionError.invalid(
            name, most, f"at most {_MAX_RECORDS}, which is all that DynamoDB Streams gives at once"
        )


def _environment(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    """The environment, with the endpoint of this service in place of the endpoint of Kinesis."""
    environ = os.environ if environ is None else environ
    endpoint = environ.get("AWS_ENDPOINT_URL_DYNAMODB_STREAMS")
    others = {name: value for name, value in environ.items() if name != "AWS_ENDPOINT_URL_KINESIS"}
    return others if endpoint is None else {**others, "AWS_ENDPOINT_URL_KINESIS": endpoint}


class DynamoDbStreamsDataSource(DataSource):
    """DynamoDB Streams, for `read` and `readStream`: the changes of a table's items."""

    @without_frames
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        limit_collections()
        self._parsed = dynamodb_options(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "dynamodb-streams"

    @without_frames
    def schema(self) -> StructType:
        """The columns that are read."""
        check_use(self.options, Use.ANY_READ)
        return CHANGE_SCHEMA

    @without_frames
    def reader(self, schema: StructType) -> DataSourceReader:
        """A bounded read: what the stream holds now."""
        check_use(self.options, Use.READ)
        check_read_schema(schema, self._parsed)
        from penstock.aws import AwsSession
        from penstock.spark_plugin._connections import aws_options
        from penstock.spark_plugin._reading.bounded.reader import KinesisBatchReader
        from penstock.spark_plugin._reading.stream_names import with_streams

        # Tasks read the stream that was found when the read was planned.
        return KinesisBatchReader(with_streams(self._parsed, lambda: AwsSession(aws_options(self._parsed))))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A read that follows the stream. What is wrong with it is raised by the first call of the reader."""
        from penstock.spark_plugin._reading.stream.plain_reader import RefusedStreamReader, stream_reader

        try:
            check_use(self.options, Use.READ_STREAM)
            check_read_schema(schema, self._parsed)
            return stream_reader(self._parsed)
        except SparkPluginError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """A stream is written by DynamoDB alone. Raises: SparkPluginError."""
        raise SparkPluginError(f"{_FORMAT} can only be read: a change of the table's items writes its stream")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """A stream is written by DynamoDB alone. Raises: SparkPluginError."""
        self.writer(schema, overwrite)
