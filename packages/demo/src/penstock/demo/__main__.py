"""`penstock demo`: the main job, end to end, on an embedded Kinesis."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from botocore.exceptions import BotoCoreError, ClientError
from opentelemetry import trace
from rich.console import Console

from penstock.demo._run import run_demo
from penstock.demo._settings import DemoSettings
from penstock.demo._telemetry import FOLDER_VARIABLE, PROVIDER_NAME
from penstock.demo.errors import DemoError


def _terminate(number: int, _frame: FrameType | None) -> None:
    # The children are ended on the way out; a second signal must not cut that short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo. Returns 1 when a row is missing or wrong, 2 for wrong usage (by an exit), 0 else."""
    settings = DemoSettings.parse(argv)
    os.environ["OTEL_PYTHON_TRACER_PROVIDER"] = PROVIDER_NAME
    os.environ[FOLDER_VARIABLE] = str(settings.folder.resolve() / "run" / "spans")
    # Tracers that were made on import wait for the provider: the first look for it loads it.
    trace.get_tracer_provider()
    signal.signal(signal.SIGINT, _terminate)
    signal.signal(signal.SIGTERM, _terminate)
    # With --json the standard output is for the report alone.
    console = Console(stderr=settings.as_json)
    try:
        report = run_demo(settings, console)
    except (DemoError, TimeoutError, BotoCoreError, ClientError) as error:
        console.print(f"Penstock demo: {error}", style="red", highlight=False, soft_wrap=True)
        return 1
    report.print(console)
    console.print(f"plan.mmd, latency.png, spans.jsonl and report.json are in {settings.folder}", highlight=False)
    if settings.as_json:
        sys.stdout.write(json.dumps(json.loads((settings.folder / "report.json").read_text())) + "\n")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
