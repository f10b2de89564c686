"""What options must not say together: of credentials, services, endpoints, reading and writing."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

from penstock.aws import ROLE_ARN, AwsOptionError, AwsOptions, exposed_endpoint, region_of_endpoint
from penstock.rpc import MIN_TOKEN_CHARACTERS, RpcOptionError, check_address
from penstock.spark_plugin._options.spec import READER, field_name
from penstock.spark_plugin._options.table import OPTIONS
from penstock.spark_plugin._options.values import PositionOption, PositionOptionType
from penstock.spark_plugin.errors import (
    ContradictoryOptionsError,
    DangerousOptionError,
    InvalidOptionError,
    MissingOptionError,
    OptionError,
)

if TYPE_CHECKING:
    from penstock.spark_plugin._options.kinesis_options import KinesisOptions

_CONSUMER_ARN = re.compile(
    r"(?P<arn>arn:[^:]+:kinesis:(?P<region>[^:]*):\d{12}:stream/(?P<stream>[\w.-]+))"
    r"/consumer/(?P<name>[\w.-]{1,128}):\d+",
    re.ASCII,
)
_CONSUMER_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_STREAM_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_REGION = re.compile(r"[a-z0-9-]+")
_SESSION_NAME = re.compile(r"[\w+=,.@-]{2,64}", re.ASCII)
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_SHORTEST_MILLIS = 10.0
_QUERY_LENGTH = 32
"""Of the name of a query in its checkpoint."""


def check_credentials(options: "KinesisOptions") -> None:
    """Credentials are whole, and come from one place.

    Raises:
        OptionError: an option is missing, or is one too many; the error names it.
    """
    name = options.role_session_name
    if name is not None and _SESSION_NAME.fullmatch(name) is None:
        raise InvalidOptionError("roleSessionName", name, "2 to 64 letters, digits, _ + = , . @ and -")
    for arn in (options.role_arn or "").split(",") if options.role_arn else ():
        if not ROLE_ARN.fullmatch(arn.strip()):
            raise InvalidOptionError("roleArn", arn.strip(), "an ARN such as arn:aws:iam::123456789012:role/reader")
    if (options.aws_access_key_id is None) != (options.aws_secret_access_key is None):
        missing = "awsSecretAccessKey" if options.aws_secret_access_key is None else "awsAccessKeyId"
        raise MissingOptionError(missing, "an access key has two halves")
    if options.aws_session_token is not None and options.aws_access_key_id is None:
        raise MissingOptionError("awsAccessKeyId", "awsSessionToken belongs to a key")
    if options.aws_profile is not None and options.aws_access_key_id is not None:
        raise ContradictoryOptionsError(("awsProfile", "awsAccessKeyId"), "credentials come from one place")
    for name in (
        "roleSessionName",
        "roleExternalId",
        "roleSessionDuration",
        "roleSessionTags",
        "webIdentityTokenFile",
        "stsEndpointUrl",
    ):
        if getattr(options, field_name(name)) is not None and options.role_arn is None:
            raise MissingOptionError("roleArn", f"{name} belongs to a role")
    for name in ("awsAccessKeyId", "awsProfile", "webIdentityTokenFile"):
        if options.credentials_provider is not None and getattr(options, field_name(name)) is not None:
            raise ContradictoryOptionsError(("credentialsProvider", name), "credentials come from one place")
    _check_provider(options)
    try:
        AwsOptions.from_mapping(options.aws_mapping())
    except AwsOptionError as error:
        raise OptionError(f"option {error.option!r}: {error.reason}", option=error.option) from error


_PROVIDERS = {
    "basic": "awsAccessKeyId",
    "profile": "awsProfile",
    "assume_role": "roleArn",
    "custom": "credentialsProvider",
}


def _check_provider(options: "KinesisOptions") -> None:
    provider = options.aws_credentials_provider
    for name in ("awsCredentialsProvider", "roleCredentialsProvider"):
        chosen = getattr(options, field_name(name))
        needed = _PROVIDERS.get(chosen)
        if needed is not None and getattr(options, field_name(needed)) is None:
            raise MissingOptionError(needed, f"{name} is {chosen}")
    if options.role_credentials_provider != "auto" and options.role_arn is None:
        raise MissingOptionError("roleArn", "roleCredentialsProvider belongs to a role")
    if options.role_credentials_provider == "env_var":
        for name in ("awsAccessKeyId", "awsProfile", "credentialsProvider", "webIdentityTokenFile"):
            if getattr(options, field_name(name)) is not None:
                raise ContradictoryOptionsError(("roleCredentialsProvider", name), "env_var takes the environment's")
    if provider == "env_var":
        for name in ("awsAccessKeyId", "awsProfile", "roleArn", "credentialsProvider"):
            if getattr(options, field_name(name)) is not None:
                raise ContradictoryOptionsError(("awsCredentialsProvider", name), "env_var takes the environment's")


def check_environment(options: "KinesisOptions", environ: Mapping[str, str]) -> None:
    """Where the environment is to have the credentials, it has them: the default chain would look for others.

    Raises:
        InvalidOptionError: the environment lacks them.
    """
    if options.role_credentials_provider == "env_var" and not environ.get("AWS_ACCESS_KEY_ID"):
        rule = "another one, or AWS_ACCESS_KEY_ID be set in the driver's environment"
        raise InvalidOptionError("roleCredentialsProvider", "env_var", rule)
    provider = options.aws_credentials_provider
    variable = {"env_var": "AWS_ACCESS_KEY_ID", "web_identity_token": "AWS_WEB_IDENTITY_TOKEN_FILE"}.get(provider)
    if variable is not None and options.web_identity_token_file is None and not environ.get(variable):
        rule = f"another one, or {variable} be set in the driver's environment"
        raise InvalidOptionError("awsCredentialsProvider", provider, rule)


_PROOFS = ("serviceToken", "serviceTokenFile", "serviceCaFile", "serviceCertificateFile", "servicePrivateKeyFile")


def check_stream(options: "KinesisOptions") -> None:
    """Names of streams and regions have letters that AWS knows, and a search for streams has a pattern.

    Raises:
        OptionError: a name has other letters, or the pattern is missing.
    """
    for name in options.stream_name:
        if _STREAM_NAME.fullmatch(name) is None:
            rule = "a name of 1 to 128 letters, digits, _ . and - (an ARN: `streamArn`)"
            raise InvalidOptionError("streamName", name, rule)
    if options.region is not None and _REGION.fullmatch(options.region) is None:
        raise InvalidOptionError("region", options.region, "a region such as eu-west-1")
    if options.stream_discovery_interval is not None and options.stream_name_pattern is None:
        raise MissingOptionError(
            "streamNamePattern",
            "streamDiscoveryInterval is how often a running query looks for streams that match it",
        )


def check_trace(traceparent: str) -> None:
    """A trace context that is given by an option is one: spans without their parent would be found by nobody.

    Raises:
        InvalidOptionError: the text is not a trace context.
    """
    if _TRACE.fullmatch(traceparent) is None:
        rule = "a W3C trace context such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        raise InvalidOptionError("traceparent", traceparent, rule)


def check_services(options: "KinesisOptions") -> None:
    """What a query proves itself with to services is whole, and there is a service.

    Raises:
        OptionError: an option is missing, or is one too many; the error names it.
    """
    if options.service_token is not None and options.service_token_file is not None:
        raise ContradictoryOptionsError(("serviceToken", "serviceTokenFile"), "there is one token")
    if (options.service_certificate_file is None) != (options.service_private_key_file is None):
        key_is_missing = options.service_private_key_file is None
        missing = "servicePrivateKeyFile" if key_is_missing else "serviceCertificateFile"
        raise MissingOptionError(missing, "a certificate and its key are given together")
    for option, endpoints in (
        ("readerEndpoint", options.reader_endpoint),
        ("registryEndpoint", (options.registry_endpoint,) if options.registry_endpoint else ()),
        ("sinkEndpoint", (options.sink_endpoint,) if options.sink_endpoint else ()),
    ):
        for endpoint in endpoints:
            try:
                check_address(endpoint)
            except RpcOptionError:
                rule = "host:port, such as 10.0.0.5:50051, or unix:PATH"
                raise InvalidOptionError(option, endpoint, rule) from None
    if options.registry_endpoint and options.reader_endpoint and options.record_publisher == "polling":
        raise ContradictoryOptionsError(
            ("registryEndpoint", "readerEndpoint"),
            "a query that polls by services has neither stream consumers to lease nor readers of its own to announce: "
            "give recordPublisher=efo for enhanced fan-out, or leave registryEndpoint out",
        )
    given = [name for name in _PROOFS if getattr(options, field_name(name)) is not None]
    if given and not any((options.reader_endpoint, options.registry_endpoint, options.sink_endpoint)):
        raise MissingOptionError(
            "readerEndpoint",
            f"{given[0]!r} is for services, and no service is given by it, 'registryEndpoint' or 'sinkEndpoint'. "
            f"Give one, or leave {given[0]} out",
        )
    if options.service_token is not None and len(options.service_token) < MIN_TOKEN_CHARACTERS:
        rule = f"a token of at least {MIN_TOKEN_CHARACTERS} characters: make one with `openssl rand -hex 32`"
        raise InvalidOptionError("serviceToken", "***", rule)


def check_homes(options: "KinesisOptions", given: Mapping[str, str] | None = None) -> None:
    """Refuse options that would have no effect beside another one, such as the endpoint that what they are about is at.

    Args:
        options: all of them.
        given: the texts that were written, by canonical name; by default what differs from the defaults counts as
            given.

    Raises:
        ContradictoryOptionsError: an option would have no effect; the error names it and the other one.
    """
    for spec in OPTIONS:
        for refusal in spec.refused_with:
            other = getattr(options, field_name(refusal.with_option))
            if other != refusal.when if refusal.when else not other:
                continue
            if given is None:
                value = getattr(options, field_name(spec.name))
                is_given = value != _default_of(type(options), spec.name) and str(value) != refusal.unless
            else:
                is_given = spec.name in given and given[spec.name].strip().lower() != refusal.unless
            if is_given:
                end = f", or leave {spec.name} out" if refusal.when else f". Leave {spec.name} out"
                raise ContradictoryOptionsError((spec.name, refusal.with_option), refusal.cure + end)


def check_beside_readers(options: "KinesisOptions") -> None:
    """Refuse options that would have no effect beside readers on executors, as beside services of `readerEndpoint`.

    Raises:
        ContradictoryOptionsError: an option would have no effect; the error names it.
    """
    for spec in OPTIONS:
        refused = any(refusal.with_option == "readerEndpoint" for refusal in spec.refused_with)
        if refused and getattr(options, field_name(spec.name)) != _default_of(type(options), spec.name):
            cure = (
                f"give {spec.name} to start_readers"
                if READER in spec.acts
                else "there is no reader of the query's own that would listen anywhere"
            )
            raise ContradictoryOptionsError(
                (spec.name, "executorReaders"),
                f"this query reads by the readers that start_readers runs on the executors: {cure}, or give the query "
                "executorReaders=false, or leave it out",
            )


def _default_of(options: "type[KinesisOptions]", name: str) -> object:
    found = next(one for one in fields(options) if one.name == field_name(name))
    return found.default if found.default_factory is MISSING else found.default_factory()


def check_endpoints(options: "KinesisOptions", environ: Mapping[str, str]) -> None:
    """An endpoint of AWS is one of the region, and real credentials are not used where they could be read on the way.

    What the default chain will find is not known here: all but keys that look like an emulator's are taken for real.

    Raises:
        ContradictoryOptionsError: the endpoint is that of another region.
        DangerousOptionError: an endpoint on another host has no TLS, and the credentials look real.
    """
    region = region_of_endpoint(options.endpoint_url)
    if region is not None and options.region not in (None, region):
        raise ContradictoryOptionsError(
            ("region", "endpointUrl"),
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
        raise DangerousOptionError(
            name,
            f"records and session tokens would go to {host} without encryption, with credentials that may be real",
            "use https://, or set 'allowInsecureEndpoint' to true if the way there is safe",
        )


def check_efo(options: "KinesisOptions") -> None:
    """Enhanced fan-out has a consumer of its own.

    Raises:
        OptionError: an option is missing, or is one too many; the error names it.
    """
    arns = dict(options.efo_consumer_arn)
    if options.record_publisher != "efo":
        return
    if options.efo_registration == "none":
        for stream in options.stream_name:
            if stream not in arns:
                raise MissingOptionError(f"efoConsumerArn.{stream}", "efoRegistration is none")
            # Kinesis is asked for a consumer and a shard: the records would be another stream's, and nobody would tell.
            consumer = _CONSUMER_ARN.fullmatch(arns[stream])
            if consumer is None or consumer["stream"] != stream:
                raise InvalidOptionError(
                    f"efoConsumerArn.{stream}", arns[stream], f"the ARN of a consumer of stream {stream}"
                )
            # A stream of that name in another account or region is another one.
            if options.arn_of(stream) not in (None, consumer["arn"]):
                raise ContradictoryOptionsError(
                    ("streamArn", f"efoConsumerArn.{stream}"),
                    f"the consumer is one of {consumer['arn']}: give that as streamArn, or another consumer",
                )
            if options.region not in (None, consumer["region"]):
                raise ContradictoryOptionsError(
                    ("region", f"efoConsumerArn.{stream}"),
                    f"the consumer is in {consumer['region']}, not in {options.region}",
                )
            if options.efo_consumer_name not in (None, consumer["name"]):
                raise ContradictoryOptionsError(
                    ("efoConsumerName", f"efoConsumerArn.{stream}"), f"the ARN is that of consumer {consumer['name']}"
                )
    elif arns:
        raise ContradictoryOptionsError(
            ("efoConsumerArn", "efoRegistration"), "ARNs are given with efoRegistration=none alone"
        )
    elif options.efo_consumer_name is None and options.efo_registration == "eager":
        raise MissingOptionError(
            "efoConsumerName",
            "efoRegistration is eager, which registers before there is a checkpoint to make a name of; give a name "
            "that no other query has on these streams, and that stays the same over restarts, or efoRegistration=lazy",
        )
    elif _CONSUMER_NAME.fullmatch(options.consumer_name("0" * _QUERY_LENGTH)) is None:
        given = "efoConsumerName" if options.efo_consumer_name is not None else "efoConsumerNamePrefix"
        rule = "1 to 128 letters, digits, _ . and -, with its prefix"
        if options.efo_consumer_name is None:
            rule = f"letters, digits, _ . and -, at most {128 - _QUERY_LENGTH} before a name of the checkpoint's"
        raise InvalidOptionError(given, options.efo_consumer_name or options.efo_consumer_name_prefix or "", rule)


def check_sizes(options: "KinesisOptions") -> None:
    """What holds something is at least as large as that.

    Raises:
        ContradictoryOptionsError: it is smaller.
    """
    for smaller, larger in (
        ("bufferBytesPerShard", "bufferBytes"),
        ("maxRecordSizeInBytes", "maxBatchSizeInBytes"),
        ("maxBatchSize", "maxBufferedRequests"),
    ):
        if getattr(options, field_name(smaller)) > getattr(options, field_name(larger)):
            raise ContradictoryOptionsError((smaller, larger), f"{larger} must hold at least one {smaller}")
    if options.max_buffered_requests == options.max_batch_size:
        reason = f"a task must buffer more records than the {options.max_batch_size} of a request"
        raise ContradictoryOptionsError(("maxBufferedRequests", "maxBatchSize"), reason)


def check_retries(options: "KinesisOptions") -> None:
    """The longest delay between two attempts is not below the first, and attempts without end have pauses.

    Raises:
        ContradictoryOptionsError: the longest delay is below the first, or the pauses are missing.
    """
    for spec in OPTIONS:
        if not spec.name.endswith("BackoffBase"):
            continue
        longest = spec.name.removesuffix("Base") + "Max"
        first_millis, longest_millis = (getattr(options, field_name(name)) for name in (spec.name, longest))
        if longest_millis < first_millis:
            raise ContradictoryOptionsError(
                (longest, spec.name),
                f"the longest delay between two attempts, {longest_millis:g} ms, is below the first, "
                f"{first_millis:g} ms: give both (their defaults are {_default_of(type(options), longest):g} and "
                f"{spec.default})",
            )
        retries = spec.name.removesuffix("BackoffBase") + "MaxRetries"
        if longest_millis < _SHORTEST_MILLIS and getattr(options, field_name(retries)) is None:
            raise ContradictoryOptionsError(
                (longest, retries),
                f"without a number of attempts, delays of at most {longest_millis:g} ms would call AWS without a pause "
                f"for as long as retryPatience says: give {_SHORTEST_MILLIS:g} ms or more, or {retries}",
            )


def check_positions(options: "KinesisOptions") -> None:
    """Positions are whole, and are about the streams that are read.

    Raises:
        OptionError: a position is incomplete, or is about another stream; the error names it.
    """
    position, ending = options.initial_position, options.ending_position
    if position is not None and position.type is PositionOptionType.AT_TIMESTAMP and position.timestamp is None:
        raise MissingOptionError("initialTimestamp", "initialPosition is AT_TIMESTAMP without a time")
    if options.initial_timestamp_format is not None and options.initial_timestamp is None:
        raise MissingOptionError("initialTimestamp", "initialTimestampFormat says how it is written")
    if ending is not None and ending.type is PositionOptionType.AT_TIMESTAMP and ending.timestamp is None:
        raise InvalidOptionError("endingPosition", "AT_TIMESTAMP", "with its time")
    if ending is not None and ending.type is PositionOptionType.TRIM_HORIZON:
        reason = "now (or LATEST), a time, or sequence numbers as JSON: nothing comes before TRIM_HORIZON"
        raise InvalidOptionError("endingPosition", "TRIM_HORIZON", reason)
    for name, one in (("initialPosition", position), ("endingPosition", ending)):
        _check_streams(name, one, options)


def check_columns(options: "KinesisOptions") -> None:
    """Columns of another connector are those that it has.

    Raises:
        ContradictoryOptionsError: an option asks for a column that the other connector does not have.
    """
    if options.columns != "penstock" and options.include_encryption_type:
        raise ContradictoryOptionsError(("columns", "includeEncryptionType"), f"{options.columns} has no such column")


def _check_streams(name: str, position: PositionOption | None, options: "KinesisOptions") -> None:
    if position is None or position.streams is None:
        return
    named, streams = set(position.streams), set(options.stream_name)
    if named == streams or (named == {""} and len(streams) == 1):
        return
    if options.stream_name_pattern is not None:
        raise ContradictoryOptionsError(
            (name, "streamNamePattern"),
            "which streams match is known when the query runs: give one position for all, or name the streams in "
            "streamName",
        )
    rule = "a position for each stream in streamName and no other, such as "
    rule += json.dumps(dict.fromkeys(sorted(streams), "TRIM_HORIZON")) + "; "
    if named == {""}:
        raise InvalidOptionError(name, "shards without their streams", f"{rule}shards stand below their stream's name")
    wrong = [f"{one} is missing" for one in sorted(streams - named)]
    wrong += [f"{one or 'a stream without a name'} is not read" for one in sorted(named - streams)]
    raise InvalidOptionError(name, ", ".join(sorted(named)), rule + ", ".join(wrong))


def check_reading(options: "KinesisOptions") -> None:
    """Refuse options of reading that cannot hold together.

    Raises:
        OptionError: two options contradict each other; the error names them.
    """
    _check_pattern(options)
    least, most = options.min_partitions, options.max_partitions
    if least is not None and most is not None and least > most:
        raise ContradictoryOptionsError(
            ("minPartitions", "maxPartitions"), f"there cannot be at least {least} partitions and at most {most}"
        )
    fewest, records = options.min_records_per_batch, options.max_records_per_batch
    if fewest is not None and records is not None and fewest > records:
        raise ContradictoryOptionsError(
            ("minRecordsPerBatch", "maxRecordsPerBatch"),
            f"there cannot be at least {fewest} records and at most {records}",
        )
    if fewest is not None and options.max_records_per_shard_per_batch is not None:
        raise ContradictoryOptionsError(
            ("minRecordsPerBatch", "maxRecordsPerShardPerBatch"),
            "how many shards have records is not known beforehand: bound micro-batches by maxRecordsPerBatch",
        )
    if options.max_trigger_delay is not None and fewest is None:
        raise MissingOptionError("minRecordsPerBatch", "maxTriggerDelay is how long a query waits for so many")
    if options.spill_folder is not None and not options.spill_bytes:
        raise MissingOptionError("spillBytes", "spillFolder is where these bytes are")
    added = options.added_stream_position
    if added is not None and (added.streams is not None or added.seam is not None or _lacks_time(added)):
        raise InvalidOptionError("addedStreamPosition", added.type.value, "LATEST, TRIM_HORIZON or a time")


def _lacks_time(position: PositionOption) -> bool:
    return position.type is PositionOptionType.AT_TIMESTAMP and position.timestamp is None


def _check_pattern(options: "KinesisOptions") -> None:
    pattern, interval = options.stream_name_pattern, options.stream_discovery_interval
    if pattern is None:
        return
    if interval is not None and 0 < interval < 1:
        # ListStreams has 5 calls a second, which all of the account share.
        raise InvalidOptionError("streamDiscoveryInterval", f"{interval:g} s", "1s or longer, or 0 for never")
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


_LONGEST_KEY = 256
_LARGEST_REQUEST = 500
_OF_AIMD = ("sinkRateTarget", "sinkInitialRate", "sinkIncreaseRate", "sinkDecreaseFactor", "sinkRateThreshold")


def check_writing(options: "KinesisOptions") -> None:
    """Check what a writer is told.

    Raises:
        OptionError: an option contradicts another; the error names both.
    """
    _check_keys(options)
    _check_values(options)
    _check_rates(options)


def _check_keys(options: "KinesisOptions") -> None:
    if options.random_partition_key and options.partition_key_column != "partitionKey":
        raise ContradictoryOptionsError(
            ("randomPartitionKey", "partitionKeyColumn"), "a key is random or comes from a column"
        )
    if options.fixed_partition_key is None:
        return
    if options.random_partition_key or options.partition_key_column != "partitionKey":
        other = "randomPartitionKey" if options.random_partition_key else "partitionKeyColumn"
        raise ContradictoryOptionsError(("fixedPartitionKey", other), "a key comes from one place")
    if len(options.fixed_partition_key) > _LONGEST_KEY:
        raise InvalidOptionError("fixedPartitionKey", options.fixed_partition_key, "1 to 256 characters")


def _check_values(options: "KinesisOptions") -> None:
    kind = options.value_format
    if options.value_columns and kind is None:
        raise MissingOptionError("valueFormat", "valueColumns are the columns that it makes the data of")
    if options.avro_encoding != "binary" and kind != "avro":
        raise ContradictoryOptionsError(("avroEncoding", "valueFormat"), "the encoding belongs to valueFormat=avro")
    if options.csv_delimiter != "," and kind != "csv":
        raise ContradictoryOptionsError(("csvDelimiter", "valueFormat"), "the delimiter belongs to valueFormat=csv")
    if len(options.csv_delimiter) != 1 or options.csv_delimiter in '"\r\n':
        raise InvalidOptionError("csvDelimiter", options.csv_delimiter, "one character, no quote and no line break")
    if options.record_delimiter == "":
        raise InvalidOptionError("recordDelimiter", "", "a text that is not empty; leave it out for none")
    if options.record_delimiter is not None and kind == "avro":
        raise ContradictoryOptionsError(
            ("recordDelimiter", "valueFormat"), "Avro's bytes may hold the delimiter too: it would separate nothing"
        )


def _check_rates(options: "KinesisOptions") -> None:
    strategy = options.sink_rate_strategy
    if strategy == "shards" and options.aggregation:
        raise ContradictoryOptionsError(
            ("sinkRateStrategy", "aggregation"),
            "the records of an aggregate are not paced by shards; leave sinkRateStrategy out, or give aimd or none",
        )
    given = {name: value for name in _OF_AIMD if (value := getattr(options, field_name(name))) is not None}
    if given and strategy is None:
        raise MissingOptionError("sinkRateStrategy", f"{next(iter(given))} belongs to sinkRateStrategy=aimd")
    if given and strategy != "aimd":
        raise ContradictoryOptionsError((next(iter(given)), "sinkRateStrategy"), "it belongs to sinkRateStrategy=aimd")
    if strategy == "aimd":
        _check_limits(options)


def _check_limits(options: "KinesisOptions") -> None:
    from penstock.async_sink import check_aimd, kinesis_aggregation_config
    from penstock.async_sink.errors import SinkOptionError

    batch = options.max_batch_size
    if options.aggregation and batch == _LARGEST_REQUEST and "maxBatchSize" not in options.written:
        batch = kinesis_aggregation_config().max_batch_size
    names = {field_name(name).removeprefix("sink_"): name for name in _OF_AIMD}
    names |= {field_name(name): name for name in ("maxInFlightRequests", "maxBatchSize")}
    try:
        check_aimd(
            max_in_flight_requests=options.max_in_flight_requests,
            max_batch_size=batch,
            target=options.sink_rate_target,
            initial_rate=options.sink_initial_rate,
            increase_rate=options.sink_increase_rate,
            decrease_factor=options.sink_decrease_factor,
            rate_threshold=options.sink_rate_threshold,
            usual_decrease_factor=0.99,
        )
    except SinkOptionError as error:
        value, _, rule = error.reason.partition(" must be ")
        rule = re.sub("|".join(names), lambda found: names[found[0]], rule)
        raise InvalidOptionError(names[error.option], value, rule) from error
