"""Files in the checkpoint of a query, into whose folder other users may write."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.efo_consumer import CheckpointError, SparkCheckpoint


def _link(path: Path) -> None:
    other = path.parent.parent / "other"
    other.write_text("v1\n{}\n-")
    path.symlink_to(other)


def _sparse_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, _link, _sparse_file])
def test_a_file_that_spark_did_not_write_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A FIFO does not block, a link is not followed, and a file without end is not read into memory."""
    (tmp_path / "offsets").mkdir()
    make(tmp_path / "offsets" / "0")
    with pytest.raises(CheckpointError) as caught:
        SparkCheckpoint(str(tmp_path)).batch(0)
    assert str(tmp_path / "offsets" / "0") in str(caught.value)
