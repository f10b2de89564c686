"""Where a new query begins."""

from penstock.aws import AwsSession
from penstock.efo_consumer import StartingPosition, StartingPositionType, StreamPositions, resolve_initial_positions
from penstock.spark_plugin._connections import aws_options
from penstock.spark_plugin._options import KinesisOptions


def initial_positions(options: KinesisOptions) -> StreamPositions:
    """The positions of a new streaming query. Asks Kinesis for its shards, and for LATEST its time.

    Raises:
        penstock.efo_consumer.InitialPositionError: A stream's shards cannot be listed.
    """
    return resolve_initial_positions(AwsSession(aws_options(options)), options.stream_name, _starting_position(options))


def _starting_position(options: KinesisOptions) -> StartingPosition:
    position = options.initial_position
    if position is None:
        return StartingPosition(StartingPositionType.LATEST)
    millis = int(position.timestamp.timestamp() * 1000) if position.timestamp is not None else None
    return StartingPosition(StartingPositionType(position.type.value), millis)
