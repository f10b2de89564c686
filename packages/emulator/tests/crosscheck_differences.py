"""The scenarios in which other servers answer differently, and which server follows the API reference of AWS."""

DIFFERENCES: dict[str, tuple[str, str]] = {
    "sequence-numbers": (
        "moto",
        "moto counts `1`, `2`, `3` in each shard. The reference promises only that numbers grow, so that is "
        "allowed, but code that expects the service's 56 digits does not see them",
    ),
    "explicit-hash-keys": (
        "moto, kinesis-local",
        "Both: a range includes its EndingHashKey (reference, HashKeyRange). kinesis-local puts that key "
        "into the next shard; moto has no shard for 2^128-1 and answers 500",
    ),
    "iterator-type-without-its-position": (
        "moto",
        "moto answers 500, and takes AT_TIMESTAMP without a time; GetShardIterator has "
        "InvalidArgumentException for that",
    ),
    "iterator-type-that-is-none": (
        "moto, kinesis-local",
        "By the letter, we: GetShardIterator lists InvalidArgumentException, as moto answers. What violates "
        "the service model is answered here with ValidationException throughout, as the service itself "
        "does. kinesis-local's SerializationException is for wrong types",
    ),
    "sequence-number-of-another-shard": (
        "moto, kinesis-local",
        'kinesis-local takes it; the reference wants the number "of the data record in the shard". moto '
        "fails before, as in `explicit-hash-keys`",
    ),
    "timestamp-in-the-future": (
        "moto, kinesis-local",
        "The reference does not say; the service refuses it, and so do we",
    ),
    "forged-iterator": (
        "moto, kinesis-local",
        "Both answer 500; GetRecords has InvalidArgumentException",
    ),
    "get-with-limits-out-of-range": (
        "moto, kinesis-local",
        "By the letter, we: for a Limit above 10,000 the reference says InvalidArgumentException, as "
        "kinesis-local answers; here the model's constraint is a ValidationException like all others. moto "
        "takes 0 and 10,001",
    ),
    "closed-shard-to-its-end": (
        "moto",
        "moto keeps returning records of the children under the parent; GetRecords gives null and ChildShards there",
    ),
    "records-after-a-split": (
        "moto",
        "moto has no shard for the last hash key, as in `explicit-hash-keys`",
    ),
    "split-where-it-cannot-be": (
        "kinesis-local",
        "kinesis-local splits at the first key, which leaves a child without keys; NewStartingHashKey has "
        "to be within the range",
    ),
    "split-of-a-closed-shard": (
        "kinesis-local",
        "ResourceInUseException is for a stream that is not ACTIVE (SplitShard)",
    ),
    "scaling-too-far": (
        "moto, kinesis-local",
        "More than double is beyond a limit (UpdateShardCount), and what is beyond a limit is "
        "LimitExceededException. moto does it",
    ),
    "shard-filters": (
        "moto, kinesis-local",
        'AT_TRIM_HORIZON lists "the shards that were open at TRIM_HORIZON": no children. moto ignores all filters',
    ),
    "pages-of-shards": (
        "moto",
        "moto refuses its own NextToken beside MaxResults, which ListShards allows",
    ),
    "token-beside-a-name": (
        "moto",
        '"Don\'t specify StreamName if you specify NextToken" (ListShards)',
    ),
    "described-in-pages": (
        "moto",
        "moto ignores ExclusiveStartShardId",
    ),
    "number-of-records-in-a-request": (
        "moto, kinesis-local",
        "1 to 500 (PutRecords): kinesis-local takes 0 and 501, moto takes 0",
    ),
    "length-of-a-partition-key": (
        "moto, kinesis-local",
        "1 to 256 characters. moto takes none; both answer InvalidArgumentException for 257, which "
        "PutRecords lists, where the service's check of the model answers ValidationException",
    ),
    "size-of-a-record": (
        "kinesis-local",
        "Data and key, 1 MiB together, unless the stream has a MaxRecordSizeInKiB of its own; kinesis-local takes more",
    ),
    "writes-beyond-the-throughput": (
        "moto, kinesis-local",
        "1 MiB/s for each shard (PutRecords): neither has it",
    ),
    "reads-beyond-the-throughput": (
        "moto, kinesis-local",
        "5 calls/s for each shard (GetRecords): neither has it",
    ),
    "consumers-beyond-twenty": (
        "moto",
        "20 for each stream (RegisterStreamConsumer)",
    ),
    "consumer-arn-with-its-creation": (
        "moto",
        '"consumer ARNs contain the creation timestamp" (Consumer)',
    ),
    "consumer-registered-twice": (
        "moto",
        "ResourceInUseException (RegisterStreamConsumer)",
    ),
    "consumer-that-is-gone": (
        "moto, kinesis-local",
        "DeregisterStreamConsumer takes a stream's ARN and a name. moto removes all consumers but this one; "
        "kinesis-local leaves it DELETING when other streams have a consumer of the same name",
    ),
    "stream-with-consumers-deleted": (
        "moto, kinesis-local",
        "DeleteStream has to refuse without EnforceConsumerDeletion. moto does not; kinesis-local refuses, "
        "and the stream is gone all the same",
    ),
    "names-that-are-none": (
        "moto, kinesis-local",
        "moto takes names that break CreateStream's pattern and length. kinesis-local's "
        "InvalidArgumentException is in CreateStream's list, as is our ValidationException",
    ),
    "stream-without-shards": (
        "moto, kinesis-local",
        "ShardCount is 1 at least: ValidationException (CreateStream). moto answers 500",
    ),
}
