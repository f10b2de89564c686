"""What the demo is asked for, and what its Spark driver is given."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from penstock.terminal import Parser, positive_count


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of the Spark driver. Written to a file that the driver reads; holds no secret."""

    flights_stream: str
    delays_stream: str
    consumer_name: str
    aws_options: dict[str, str]
    """Options of the data source that say where Kinesis is: region, endpointUrl, caBundle."""
    polling: bool
    reader_endpoint: str | None
    registry_endpoint: str | None
    store: str
    """Folder of stages and checkpoints."""
    counts: str
    """File of the table of counts."""
    plan: str
    """File to write the plan to, as Mermaid."""

    def write(self, file: Path) -> None:
        """As JSON."""
        file.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Self:
        """From JSON."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


REGION = "us-east-1"


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """What the demo is asked to do, with the same defaults as the command line."""

    rows: int | None = None
    """Flights to send. Default: all, about 336,000."""
    rate: float | None = None
    """Records per second at most. Default: what the shards take."""
    polling: bool = False
    """Read by GetRecords instead of enhanced fan-out."""
    services: bool = False
    """Run the consumer registry and the shard reader as services."""
    endpoint_url: str | None = None
    """A Kinesis to use instead of the embedded one."""
    region: str = REGION
    """Region of that Kinesis."""
    keep: bool = False
    """Keep checkpoints, stages and counts, and start the Spark driver again when it is killed."""
    kill_driver: bool = False
    """Kill the Spark driver with signal 9 halfway. Implies `keep`."""
    folder: Path = Path("penstock-demo")
    """Where the results go."""
    as_json: bool = False
    """Write the report to the standard output, and everything else to the standard error."""

    @property
    def restarts_driver(self) -> bool:
        """Whether a driver that was killed is started again."""
        return self.keep or self.kill_driver

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> Self:
        """Settings from the command line; ends the process with a message when they are wrong."""
        parser = Parser(
            prog="penstock demo",
            description="Flights out of New York in 2013 run through Kinesis and Spark: the weather of each day is "
            "aggregated first, then delayed departures are joined with it as they arrive.",
        )
        add = parser.add_argument
        add("--rows", type=positive_count, help="flights to send; default: all, about 336,000")
        add("--rate", type=_positive_float, help="records per second at most; default: what the shards take")
        add("--polling", action="store_true", help="read by GetRecords instead of enhanced fan-out")
        add("--services", action="store_true", help="run the consumer registry and the shard reader as services")
        add("--endpoint-url", help="a Kinesis to use instead of the embedded one; needs credentials")
        add("--region", default=REGION, help="region of that Kinesis; default: %(default)s")
        add(
            "--keep",
            action="store_true",
            help="keep checkpoints, stages and counts, and start the Spark driver again when it is killed",
        )
        add(
            "--kill-driver",
            action="store_true",
            help="kill -9 the Spark driver halfway, to see it resume; implies --keep",
        )
        add("--folder", type=Path, default=Path("penstock-demo"), help="where the results go; default: ./%(default)s")
        add("--json", dest="as_json", action="store_true", help="one JSON object on the standard output: report.json")
        return cls(**vars(parser.parse_args(arguments)))


def _positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
