"""The emulator's command at a terminal, where people read its first line."""

import json
import os
import pty
import signal
import subprocess
import sys

import pytest


def shown(*flags: str, end: bytes) -> str:
    """What the command writes to a terminal, up to there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock.emulator", "--no-tls", *flags]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        try:
            written = b""
            while end not in written:
                written += os.read(ours, 4096)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            os.close(ours)
    return written.decode()


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_terminal_gets_what_to_set_and_a_program_gets_json(flags: tuple[str, ...]) -> None:
    """Lines to paste into another terminal, unless JSON is asked for."""
    written = shown(*flags, end=b"}" if flags else b"AWS_DEFAULT_REGION=us-east-1")
    if flags:
        assert json.loads(written)["endpoint_url"].startswith("http://127.0.0.1:")
    else:
        assert "export AWS_ENDPOINT_URL_KINESIS=http://127.0.0.1:" in written
        assert "export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test" in written
        assert "export AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1" in written


def test_a_terminal_gets_the_region_and_the_key_that_are_in_force() -> None:
    """Clients that set what is printed are let in; the secret itself is not printed, but whose it is."""
    flags = ("--region", "eu-west-1", "--verify-signatures", "--access-keys", "AK=hidden,BK=hidden")
    written = shown(*flags, end=b"AWS_DEFAULT_REGION=eu-west-1")
    assert "export AWS_ACCESS_KEY_ID=AK AWS_SECRET_ACCESS_KEY='<the secret of AK>'" in written
    assert "export AWS_REGION=eu-west-1 AWS_DEFAULT_REGION=eu-west-1" in written
    assert "hidden" not in written
