"""What importing the package costs a process that needs little of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import penstock.efo_consumer


def modules_after(statement: str) -> set[str]:
    """Import in a process of its own; give the modules that it has then."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_a_task_that_reads_ranges_loads_no_client_of_aws() -> None:
    """Spark starts many Python workers: what only the driver needs is loaded by the driver."""
    found = modules_after("from penstock.efo_consumer import READ_SCHEMA, ShardRange, StreamPositions, read_ranges")
    assert "penstock.efo_consumer._remote.fetch" in found
    assert found.isdisjoint({"awscrt", "aiohttp", "botocore", "boto3", "pandas"})


WRONG = "Reader2"


def test_every_name_is_found_on_first_use() -> None:
    """Each public name leads to its module, is listed by `dir`, and a wrong one is an AttributeError."""
    for name in penstock.efo_consumer.__all__:
        assert name in dir(penstock.efo_consumer)
        assert getattr(penstock.efo_consumer, name) is not None
    with pytest.raises(AttributeError, match="Reader2"):
        getattr(penstock.efo_consumer, WRONG)
