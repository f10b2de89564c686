"""The options of the data source, typed and checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from penstock.spark_plugin._options.credentials import CredentialOptions, check_credentials, check_environment
from penstock.spark_plugin._options.parsing import collect, combine
from penstock.spark_plugin._options.reading import (
    BatchOptions,
    FetchingOptions,
    PositionOptions,
    RetryOptions,
    RowOptions,
    check_efo,
    check_reading,
)
from penstock.spark_plugin._options.services import ServiceOptions, check_services
from penstock.spark_plugin._options.spec import OptionSpec, Place
from penstock.spark_plugin._options.stream import StreamOptions, check_pattern, check_streams
from penstock.spark_plugin._options.table import BY_NAME, OPTIONS
from penstock.spark_plugin._options.values import PositionOption
from penstock.spark_plugin._options.writing import RecordOptions, SendingOptions, check_writing
from penstock.spark_plugin.errors import OptionError, in_own_words

_OF_SESSION = ("region", "endpointUrl", "caBundle", "proxyUrl")
"""Options that the AWS session takes, beside credentials."""

_CONSUMER_PREFIX = "penstock-"


@dataclass(frozen=True, kw_only=True)
class KinesisOptions(
    StreamOptions,
    CredentialOptions,
    PositionOptions,
    FetchingOptions,
    BatchOptions,
    RowOptions,
    RecordOptions,
    SendingOptions,
    ServiceOptions,
    RetryOptions,
):
    """The options of a Kinesis data source. Its bases declare them; `docs/options.md` says what each one means.

    Durations of retries and of `max_time_in_buffer` are in milliseconds, others in seconds.

    Raises:
        OptionError: an option is wrong, in `parse` and on construction; the error names it.
    """

    written: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Not an option: the names that the user wrote, by the names here. Options that were left out are not in it."""

    def __post_init__(self) -> None:
        for spec in OPTIONS:
            self._check(spec)
        check_credentials(self)
        check_services(self)
        check_pattern(self)
        check_efo(self)
        check_reading(self)
        check_writing(self)

    def _check(self, spec: OptionSpec) -> None:
        """Check what an option declares about others."""
        value = getattr(self, spec.field)
        if spec.at_most:
            other = BY_NAME[spec.at_most]
            most = getattr(self, other.field)
            if value is not None and most is not None and value > most:
                reason = f"{self._shown(spec)} is more than {self._shown(other)}"
                raise OptionError.contradictory(spec.name, spec.at_most, reason)
        # A run replaces a pattern with the names of the streams that it found.
        if value in (None, (), {}) or not self.is_given(spec):
            return
        if spec.harmless and str(value).lower() == spec.harmless:
            return
        needed, _, needed_value = spec.needs.partition("=")
        if needed and not self._has(spec.needs):
            if not needed_value:
                raise OptionError.missing(needed, f"${spec.name} needs it")
            reason = f"${spec.name} needs ${spec.needs}: give that, or leave ${spec.name} out"
            raise OptionError.contradictory(spec.name, needed, reason)
        for other_name, why in spec.not_with.items():
            if self._has(other_name):
                reason = f"{why}. Leave ${spec.name} out"
                raise OptionError.contradictory(spec.name, other_name.partition("=")[0], reason)

    def _has(self, what: str) -> bool:
        """Whether an option is given, or with `name=value` whether it has the value."""
        name, _, value = what.partition("=")
        spec = BY_NAME[name]
        found = getattr(self, spec.field)
        return str(found).lower() == value if value else found != spec.value

    def is_given(self, spec: OptionSpec) -> bool:
        """Whether an option was written, or has another value than its default."""
        return spec.name in self.written or getattr(self, spec.field) != spec.value

    def _shown(self, spec: OptionSpec) -> str:
        value = getattr(self, spec.field)
        default = "" if self.is_given(spec) else " (the default)"
        return f"${spec.name}={value if isinstance(value, int) else f'{value:g}'}{default}"

    @classmethod
    def parse(
        cls, options: Mapping[str, str], *, environ: Mapping[str, str] | None = None, stream_required: bool = True
    ) -> Self:
        """Options as a user wrote them: any letter case, canonical names or names of other connectors.

        `environ` gives the trace context (`TRACEPARENT`) when the option does not. Without `stream_required` the
        stream may be left out, as rows that are written may name theirs; then `stream_name` is empty.
        """
        environ = os.environ if environ is None else environ
        values, written = collect(options)
        try:
            combine(values)
            if stream_required and not values.keys() & {"stream_name", "stream_name_pattern"}:
                raise OptionError.missing("streamName", "it says which stream is read or written")
            values.setdefault("traceparent", environ.get("TRACEPARENT"))
            parsed = cls(**values, written=written)
            check_environment(parsed, environ)
            check_streams(parsed, environ)
        except OptionError as error:
            error.rename(written)
            raise
        return parsed

    @property
    def stream_service(self) -> str:
        """The service that has the streams, as boto3 names it."""
        if self.table_name is None:
            return "kinesis"
        # Processes that read Kinesis do not import it.
        from penstock.efo_consumer import DYNAMODB_STREAMS

        return DYNAMODB_STREAMS

    def in_own_words(self, text: str) -> str:
        """A text about these options, with `$name` as the user wrote it, and `$REGION` and `$ENDPOINT`."""
        is_table = self.table_name is not None
        variable = "AWS_ENDPOINT_URL_DYNAMODB_STREAMS" if is_table else "AWS_ENDPOINT_URL_KINESIS"
        values = {
            "REGION": self.region or "from the environment",
            "ENDPOINT": self.endpoint_url or f"not given: {variable} and AWS_ENDPOINT_URL decide, if set",
            **({"streamName": "tableName"} if is_table else {}),
        }
        return in_own_words(text, {**values, **self.written})

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
            if (spec.group == "credentials" and not spec.choices) or spec.name in _OF_SESSION
            if (value := getattr(self, spec.field)) is not None
        }


def check_beside_readers(options: KinesisOptions) -> None:
    """Refuse options that would have no effect beside readers on executors, as beside services of `readerEndpoint`.

    Raises:
        OptionError: an option would have no effect; the error names it.
    """
    for spec in OPTIONS:
        if "readerEndpoint" in spec.not_with and getattr(options, spec.field) != spec.value:
            is_theirs = Place.READER in spec.acts
            cure = f"give ${spec.name} to start_readers" if is_theirs else spec.not_with["readerEndpoint"]
            reason = (
                f"this query uses the readers that start_readers runs on the executors: {cure}, or give the query "
                "executorReaders=false, or leave it out"
            )
            raise OptionError.contradictory(spec.name, "executorReaders", reason)
