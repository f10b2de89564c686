"""Options of writing, and of retries."""

from penstock.spark_plugin._option_spec import OptionSpec, OptionType

WRITING = (
    OptionSpec(
        name="partitionKeyColumn",
        group="writing",
        default="partitionKey",
        doc="Column with the partition key.",
    ),
    OptionSpec(
        name="randomPartitionKey",
        group="writing",
        type=OptionType.BOOLEAN,
        default="false",
        doc="Gives each record a random partition key; there is no key column then.",
    ),
    OptionSpec(
        name="maxBatchSize",
        group="writing",
        type=OptionType.INTEGER,
        default="500",
        minimum=1,
        doc="Most records of a PutRecords request.",
        flink="sink.batch.max-size",
    ),
    OptionSpec(
        name="maxInFlightRequests",
        group="writing",
        type=OptionType.INTEGER,
        default="50",
        minimum=1,
        doc="Most requests of a write task under way.",
        flink="sink.requests.max-inflight",
    ),
    OptionSpec(
        name="maxBufferedRequests",
        group="writing",
        type=OptionType.INTEGER,
        default="10000",
        minimum=1,
        doc="Most records that a write task buffers.",
        flink="sink.requests.max-buffered",
    ),
    OptionSpec(
        name="maxBatchSizeInBytes",
        group="writing",
        type=OptionType.BYTES,
        default="5m",
        minimum=1,
        doc="Most bytes of a PutRecords request.",
        flink="sink.flush-buffer.size",
    ),
    OptionSpec(
        name="maxRecordSizeInBytes",
        group="writing",
        type=OptionType.BYTES,
        default="1m",
        minimum=1,
        doc="Largest record, its partition key included.",
    ),
    OptionSpec(
        name="maxTimeInBuffer",
        group="writing",
        type=OptionType.MILLISECONDS,
        default="5s",
        minimum=1,
        doc="Longest wait of a record for others to share its request.",
        flink="sink.flush-buffer.timeout",
    ),
    OptionSpec(
        name="failOnError",
        group="writing",
        type=OptionType.BOOLEAN,
        default="false",
        doc="Whether the first record that Kinesis refuses fails the task, without another attempt.",
        flink="sink.fail-on-error",
    ),
)


def _retries(verb: str, call: str, flink: str, *, retries: str, base: str, maximum: str) -> tuple[OptionSpec, ...]:
    return (
        OptionSpec(
            name=f"{verb}MaxRetries",
            type=OptionType.INTEGER,
            default=retries,
            minimum=0,
            doc=f"Attempts of {call} after a recoverable error.",
            flink=f"{flink}.maxretries",
            group="retries",
        ),
        OptionSpec(
            name=f"{verb}BackoffBase",
            type=OptionType.MILLISECONDS,
            default=base,
            minimum=0,
            doc=f"First delay between attempts of {call}.",
            flink=f"{flink}.backoff.base",
            group="retries",
        ),
        OptionSpec(
            name=f"{verb}BackoffMax",
            type=OptionType.MILLISECONDS,
            default=maximum,
            minimum=0,
            doc=f"Longest delay between attempts of {call}.",
            flink=f"{flink}.backoff.max",
            group="retries",
        ),
        OptionSpec(
            name=f"{verb}BackoffExponent",
            type=OptionType.NUMBER,
            default="1.5",
            minimum=1,
            doc=f"Growth of the delay between attempts of {call}.",
            flink=f"{flink}.backoff.expconst",
            group="retries",
        ),
    )


RETRIES = (
    *_retries(
        "registerStreamConsumer",
        "RegisterStreamConsumer",
        "flink.stream.registerstreamconsumer",
        retries="10",
        base="200",
        maximum="1000",
    ),
    *_retries(
        "deregisterStreamConsumer",
        "DeregisterStreamConsumer",
        "flink.stream.deregisterstreamconsumer",
        retries="10",
        base="200",
        maximum="1000",
    ),
    *_retries(
        "listStreamConsumers",
        "ListStreamConsumers",
        "flink.stream.liststreamconsumers",
        retries="10",
        base="200",
        maximum="1000",
    ),
    *_retries(
        "subscribeToShard",
        "SubscribeToShard",
        "flink.shard.subscribetoshard",
        retries="5",
        base="1000",
        maximum="2000",
    ),
)
