"""The emulator's command at a terminal, where people read its first line."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_terminal_gets_what_to_set_and_a_program_gets_json(flags: tuple[str, ...]) -> None:
    """Lines to paste into another terminal, unless JSON is asked for."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock.emulator", "--no-tls", *flags]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        try:
            written = b""
            end = b"}" if flags else b"us-east-1"
            while end not in written:
                written += os.read(ours, 4096)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            os.close(ours)
    if flags:
        assert json.loads(written)["endpoint_url"].startswith("http://127.0.0.1:")
    else:
        assert b"export AWS_ENDPOINT_URL_KINESIS=http://127.0.0.1:" in written
        assert b"AWS_ACCESS_KEY_ID=test" in written
