"""`penstock doctor` is ended by Ctrl+C while it waits for what does not answer."""

import signal
import socket
import subprocess
import sys


def test_an_interrupt_does_not_wait_for_silent_services() -> None:
    """Four that listen and say nothing would be waited for one after the other, each for an hour."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        flags = ["--timeout", "3600"]
        for name in ("registry", "reader", "sink", "stages"):
            flags += [f"--{name}", address]
        command = [sys.executable, "-m", "penstock.cli", "doctor", "--only", "services", "--only", "machine", *flags]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                silent.settimeout(60)
                # The first service is being asked.
                silent.accept()
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=90)
            finally:
                process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors
