"""All options, as their fields declare them."""

from penstock.spark_plugin._options.credentials import CredentialOptions
from penstock.spark_plugin._options.reading import (
    BatchOptions,
    FetchingOptions,
    PositionOptions,
    RetryOptions,
    RowOptions,
)
from penstock.spark_plugin._options.services import ServiceOptions
from penstock.spark_plugin._options.spec import OptionSpec
from penstock.spark_plugin._options.stream import StreamOptions
from penstock.spark_plugin._options.values import declared
from penstock.spark_plugin._options.writing import RecordOptions, SendingOptions

GROUPS: dict[str, tuple[str, type]] = {
    "stream": ("Streams and endpoints", StreamOptions),
    "credentials": ("Credentials and roles", CredentialOptions),
    "positions": ("Where reading begins and ends", PositionOptions),
    "fetching": ("How records are read", FetchingOptions),
    "batches": ("Size of micro-batches and partitions", BatchOptions),
    "rows": ("Columns and rows", RowOptions),
    "records": ("What is written", RecordOptions),
    "sending": ("How records are sent", SendingOptions),
    "services": ("Services and identity", ServiceOptions),
    "retries": ("Retries of reads (FLIP-128)", RetryOptions),
}
"""Title, and the dataclass that declares the options of each group, in the order of the documentation."""

OPTIONS: tuple[OptionSpec, ...] = tuple(spec for group, (_, one) in GROUPS.items() for spec in declared(one, group))

BY_NAME = {spec.name: spec for spec in OPTIONS}

SPARK_OWN = frozenset({"checkpointlocation", "queryname", "outputmode", "mergeschema"})
"""Keys that Spark itself passes to a data source, in lower case."""
