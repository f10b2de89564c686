"""Which options of reading go together."""

import re
from typing import TYPE_CHECKING

from penstock.spark_plugin._options._option_values import PositionOption, PositionOptionType
from penstock.spark_plugin.errors import ContradictoryOptionsError, InvalidOptionError, MissingOptionError

if TYPE_CHECKING:
    from penstock.spark_plugin._options._kinesis_options import KinesisOptions


def check_reading(options: "KinesisOptions") -> None:
    """Refuse options of reading that cannot hold together.

    Raises:
        OptionError: Naming them.
    """
    _check_pattern(options)
    least, most = options.min_partitions, options.max_partitions
    if least is not None and most is not None and least > most:
        raise ContradictoryOptionsError(
            ("minPartitions", "maxPartitions"), f"there cannot be at least {least} partitions and at most {most}"
        )
    if options.spill_folder is not None and not options.spill_bytes:
        raise MissingOptionError("spillBytes", "spillFolder is where these bytes are")
    added = options.added_stream_position
    if added is not None and (added.streams is not None or added.seam is not None or _lacks_time(added)):
        raise InvalidOptionError("addedStreamPosition", added.type.value, "LATEST, TRIM_HORIZON or a time")


def _lacks_time(position: PositionOption) -> bool:
    return position.type is PositionOptionType.AT_TIMESTAMP and position.timestamp is None


def _check_pattern(options: "KinesisOptions") -> None:
    pattern = options.stream_name_pattern
    if pattern is None:
        return
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidOptionError("streamNamePattern", pattern, f"a regular expression of Python: {error}") from error
    if options.stream_arn:
        raise ContradictoryOptionsError(("streamNamePattern", "streamArn"), "streams are named once")
    if options.efo_registration == "none" and options.record_publisher == "efo":
        raise ContradictoryOptionsError(
            ("streamNamePattern", "efoRegistration"),
            "the ARNs of consumers belong to streams that are named in streamName",
        )
    if options.efo_consumer_arn:
        raise ContradictoryOptionsError(
            ("streamNamePattern", "efoConsumerArn"), "ARNs belong to streams that are named in streamName"
        )
