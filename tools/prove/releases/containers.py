"""What Dockerfiles and the compose file say, done without a container engine: by processes, in folders of their own."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tools.prove.releases.dockerfiles import Image, read_image

ROOT = Path(__file__).resolve().parents[3]
FILE = ROOT / "deploy" / "compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BIN = Path(sys.executable).parent
DEADLINE_SECONDS = 60


def image_of(name: str) -> Image:
    """The image of a service of the compose file."""
    return read_image(FILE.parent / SERVICES[name]["build"]["context"] / SERVICES[name]["build"]["dockerfile"])


def user_words(image: Image) -> list[str]:
    """What a command begins with to be run by the image's user; nothing where only root could change to it."""
    if os.geteuid() or shutil.which("setpriv") is None:
        return []
    user, _, group = image.user.partition(":")
    # `setpriv` itself may still go where only root may: what it starts has to be found by the user, so by `env`.
    return ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "--no-new-privs", "env"]


def python_for(image: Image) -> str:
    """A Python that the image's user may run: the tests' own Python may be in root's folder."""
    candidates = [sys.executable, *filter(None, [shutil.which("python3", path="/usr/local/bin:/usr/bin")])]
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    for python in candidates:
        command = [*user_words(image), python, "-c", check]
        if subprocess.run(command, check=False, capture_output=True, cwd="/").returncode == 0:
            return python
    raise RuntimeError(f"none of {candidates} is a Python 3.11 that user {image.user} may run")


def build_image(image: Image, folder: Path, wheels: Path) -> Path:
    """Run what the Dockerfile's stages run, with other folders. Returns the folder that is `/opt/penstock`."""
    shutil.copytree(wheels, folder / "wheels")
    shutil.copy(ROOT / "requirements.lock", folder / "wheels")
    environment = folder / "penstock"
    # That of the tests is used instead.
    _, script = re.split(r"--requirement uv\.txt\s+&&", image.build, maxsplit=1)
    for path, local in (
        ("/usr/local/bin/python", python_for(image)),
        ("/opt/penstock", str(environment)),
        ("/wheels", str(folder / "wheels")),
    ):
        script = script.replace(path, local)
    variables = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    # First from the cache of whoever runs the tests: an image has none.
    for cached in (script.replace("--no-cache", "--offline"), script.replace("--no-cache", "")):
        shutil.rmtree(environment, ignore_errors=True)
        ended = subprocess.run(["sh", "-ec", cached], cwd=folder / "wheels", env=variables, check=False)
        if ended.returncode == 0:
            return environment
    raise RuntimeError(f"{image.requirement} cannot be installed as its Dockerfile says")


def make_secrets(folder: Path) -> None:
    """Run the script that makes the secrets of the compose file."""
    subprocess.run([str(FILE.with_name("secrets.sh")), str(folder)], check=True, capture_output=True)


class Machine:
    """The containers of the file as processes: with other folders, free ports of loopback, and nothing else changed."""

    def __init__(self, folder: Path, images: dict[str, Path]) -> None:
        """Make it in a folder that others may enter, of the `/opt/penstock` of each Dockerfile."""
        self._folder = folder
        self._images = images
        self._ports = {}
        held = []
        for name in SERVICES:
            for port in image_of(name).ports:
                held.append(socket.create_server(("127.0.0.1", 0)))
                self._ports[name, port] = held[-1].getsockname()[1]
        for one in held:
            one.close()
        make_secrets(folder / "secrets")
        # A container gets each of its files separately; processes have to enter the folder.
        (folder / "secrets").chmod(0o755)
        for name in SERVICES:
            self._prepare(name)

    def _prepare(self, name: str) -> None:
        """Make the volumes as the image has their folders."""
        image = image_of(name)
        adds_user, _, makes_folders = image.preparation.partition("&&")
        user, _, group = image.user.partition(":")
        assert adds_user.strip() == f"useradd --uid {user} --create-home penstock"
        for mount in SERVICES[name].get("volumes", []):
            volume, path = mount.split(":")[:2]
            if path not in makes_folders:
                continue
            script = makes_folders.replace(path, str(self._folder / volume))
            if user_words(image):
                script = script.replace("-o penstock -g penstock", f"-o {user} -g {group}")
            else:
                script = script.replace("-o penstock -g penstock", "")
            subprocess.run(["sh", "-ec", script], check=True)

    def local(self, name: str, text: str) -> str:
        """A word or value of a container, as it is on this machine."""
        for mount in SERVICES[name].get("volumes", []):
            volume, path = mount.split(":")[:2]
            text = text.replace(path, str(self._folder / volume))
        text = text.replace("/run/secrets", str(self._folder / "secrets"))
        text = text.replace("/opt/penstock", str(self._images[SERVICES[name]["build"]["dockerfile"]]))
        for (other, port), local in self._ports.items():
            text = text.replace(f"{other}:{port}", f"127.0.0.1:{local}")
            if other == name:
                text = text.replace(f"127.0.0.1:{port}/", f"127.0.0.1:{local}/")
                text = str(local) if text == str(port) else text
        return "127.0.0.1" if text == "0.0.0.0" else text

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a container."""
        given = {**image_of(name).environment, **SERVICES[name].get("environment", {})}
        own = {key: self.local(name, value) for key, value in given.items() if key != "PATH"}
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TZ") if key in os.environ}
        return {**kept, "HOME": str(self._folder), **own}

    def command(self, name: str) -> list[str]:
        """What a container runs, by its image's user."""
        service, image = SERVICES[name], image_of(name)
        words = [*service.get("entrypoint", image.entrypoint), *service.get("command", image.command)]
        return [*user_words(image), *(self.local(name, word) for word in words)]

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A container's process."""
        log = (self._folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            self.command(name), env=self.environment(name), cwd=self._folder, stdout=log, stderr=log
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            log.close()

    def health(self, name: str) -> int:
        """What the image's health check ends with."""
        image = image_of(name)
        command = [*user_words(image), *(self.local(name, word) for word in image.health)]
        ended = subprocess.run(command, env=self.environment(name), check=False, capture_output=True, cwd=self._folder)
        return ended.returncode

    def log(self, name: str) -> str:
        """What a container has written."""
        return (self._folder / f"{name}.log").read_text()

    def wait_until_healthy(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """By its own check."""
        until = time.monotonic() + DEADLINE_SECONDS
        while self.health(name) != 0:
            assert process.poll() is None, self.log(name)
            assert time.monotonic() < until, self.log(name)

    def ask(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a container."""
        command = [*user_words(image_of(name)), *(self.local(name, word) for word in words)]
        environment = self.environment(name)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=self._folder)
