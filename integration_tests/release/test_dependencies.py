"""What others' code the project runs: one version each, by hash, and looked up among known vulnerabilities."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tools.dependencies import lock_problems, main, read_lock, requirements_of

ROOT = Path(__file__).resolve().parents[2]
HASH = "--hash=sha256:" + "0" * 64


def test_the_lock_is_that_of_all_packages() -> None:
    """Each requirement is locked, at a version that it allows, with hashes; it names no place to download from."""
    assert lock_problems((ROOT / "requirements.lock").read_text(), requirements_of(ROOT)) == []


@pytest.mark.parametrize(
    ("lock", "words"),
    [
        ("", "grpcio is not locked"),
        (f"grpcio==1.0 \\\n    {HASH}", "grpcio is locked as 1.0, but grpcio>=1.85 is asked for"),
        ("grpcio==1.85.1", "grpcio 1.85.1 has no hash"),
        (f"--index-url https://example.org\ngrpcio==1.85.1 {HASH}", "says where a file lies"),
        (f"grpcio @ file:///wheels/grpcio.whl {HASH}", "says where a file lies"),
        (f"grpcio>=1.85.1 {HASH}", "not by =="),
    ],
)
def test_a_stale_lock_is_reported(lock: str, words: str) -> None:
    """Each of the ways in which it can be wrong."""
    assert words in "\n".join(lock_problems(lock, ["grpcio>=1.85"]))


@pytest.mark.parametrize("of_the_lock", [True, False])
@pytest.mark.parametrize("variable", ["UV_CONSTRAINT", "UV_BUILD_CONSTRAINT"])
def test_a_file_that_is_not_the_locked_one_is_refused(variable: str, of_the_lock: bool, tmp_path: Path) -> None:
    """By uv, when the lock is a constraint, of what is installed and of what builds it."""
    about, wheel = "tiny-1.0.dist-info", tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        opened.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        opened.writestr(f"{about}/RECORD", f"{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest() if of_the_lock else "0" * 64
    (tmp_path / "lock").write_text(f"tiny==1.0 --hash=sha256:{digest}\n")
    (tmp_path / "pyproject.toml").write_text('[build-system]\nrequires = ["tiny"]\nbuild-backend = "none"\n')
    asked = "tiny" if variable == "UV_CONSTRAINT" else str(tmp_path)
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--no-cache", "--no-index"]
    command += ["--python", sys.executable, "--find-links", str(tmp_path), "--target", str(tmp_path / "out"), asked]
    environment = {**os.environ, variable: str(tmp_path / "lock")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ("Hash mismatch" in ended.stderr) is not of_the_lock
    assert (tmp_path / "out" / about).exists() is (of_the_lock and variable == "UV_CONSTRAINT")


class Advisories(BaseHTTPRequestHandler):
    """Knows of a vulnerability of aiohttp, whatever its version."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        known = [{"vulns": [{"id": "TEST-1"}]} if one["package"]["name"] == "aiohttp" else {} for one in queries]
        body = json.dumps({"results": known if self.path == "/v1/querybatch" else known[1:]}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def service() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Advisories) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_known_vulnerability_fails_the_audit(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names what has it."""
    version = next(one.version for one in read_lock((ROOT / "requirements.lock").read_text()) if one.name == "aiohttp")
    assert main(["audit", "--service", service]) == 1
    assert f"aiohttp {version}: TEST-1" in capsys.readouterr().out


def test_an_audit_that_cannot_be_made_says_so(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It must not look like an audit without findings. The caller decides whether it fails."""
    for url in ("http://127.0.0.1:9", f"{service}/elsewhere"):
        assert main(["audit", "--service", url]) == 0
        assert main(["audit", "--service", url, "--required"]) == 3
        printed = capsys.readouterr()
        assert printed.err.count("NOT AUDITED") == 2
        assert printed.out == ""
