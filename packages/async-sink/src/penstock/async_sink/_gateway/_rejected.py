"""The file of entries that were refused for good after their clients were told that they are safe. Blocks."""

import json
import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from time import time as default_time
from typing import Any

from penstock.async_sink._entries import EntryFailure
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

NAME = "rejected.jsonl"


def line_of(
    kind: str,
    destination: str,
    client_id: str,
    entry: pb.Entry,
    failure: EntryFailure,
    time: Callable[[], float] = default_time,
) -> str:
    """The line about an entry; `entry` is the contract's, in base64."""
    content: dict[str, Any] = {
        "time": time(),
        "kind": kind,
        "destination": destination,
        "client": client_id,
        "error_code": failure.error_code,
        "error_message": failure.error_message,
        "entry": b64encode(entry.SerializeToString()).decode(),
    }
    return json.dumps(content, ensure_ascii=True) + "\n"


def append_lines(folder: Path, lines: Sequence[str], *, fsync: bool) -> None:
    """Add the lines to the file, which is made if need be.

    Raises:
        OSError: it cannot be written; then none of them is in it.
    """
    content = memoryview("".join(lines).encode("ascii"))
    opened = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(opened, "ab", buffering=0) as file:
        size, done = file.seek(0, os.SEEK_END), 0
        if size and os.pread(opened, 1, size - 1) != b"\n":
            # A power cut left half a line.
            content = memoryview(b"\n" + content)
        try:
            while done < len(content):
                done += file.write(content[done:])
            if fsync:
                os.fsync(file)
        except OSError:
            # Half a line would spoil the next one.
            file.truncate(size)
            raise
