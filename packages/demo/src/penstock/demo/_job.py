"""What the Spark driver is given: which job, on which streams, in which folder."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


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
