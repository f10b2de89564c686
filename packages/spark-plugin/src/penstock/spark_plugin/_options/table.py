"""All options, by what their fields declare."""

from penstock.spark_plugin._options.credentials import CredentialOptions
from penstock.spark_plugin._options.reading import ReadingOptions, RetryOptions
from penstock.spark_plugin._options.services import ServiceOptions
from penstock.spark_plugin._options.spec import OptionSpec
from penstock.spark_plugin._options.stream import StreamOptions
from penstock.spark_plugin._options.values import declared
from penstock.spark_plugin._options.writing import WritingOptions

GROUPS: dict[str, type] = {
    "stream": StreamOptions,
    "credentials": CredentialOptions,
    "reading": ReadingOptions,
    "services": ServiceOptions,
    "writing": WritingOptions,
    "retries": RetryOptions,
}
"""The dataclasses that declare options, in the order of the documentation."""

OPTIONS: tuple[OptionSpec, ...] = tuple(spec for group, one in GROUPS.items() for spec in declared(one, group))

BY_NAME = {spec.name: spec for spec in OPTIONS}

SPARK_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema"})
"""Keys that Spark itself hands to a data source, in lower case: not ours, and no error."""
