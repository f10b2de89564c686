import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.prove.releases.dockerfiles import find_dockerfiles, read_image
from tools.release.versions import find_members, name_of

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = find_dockerfiles(ROOT)
MEMBERS = {member.folder: member for member in find_members(ROOT)}
each_dockerfile = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)


def test_each_service_and_the_emulator_has_a_dockerfile() -> None:
    """What compose starts, and nothing that is not a process of its own."""
    wanted = {*(ROOT / "services").glob("*/pyproject.toml"), ROOT / "packages" / "emulator" / "pyproject.toml"}
    assert {path.parent for path in DOCKERFILES} == {path.parent for path in wanted}


@each_dockerfile
def test_a_linter_of_dockerfiles_has_nothing_to_say(dockerfile: Path) -> None:
    """Its rules come from the format and from Docker's own advice."""
    linter = str(Path(sys.executable).with_name("hadolint"))
    ended = subprocess.run([linter, "--no-color", str(dockerfile)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


@each_dockerfile
def test_an_image_is_small_pinned_and_without_rights(dockerfile: Path) -> None:
    """Two stages of one exact slim Python, a user by number, the signal that services drain at, and labels."""
    image = read_image(dockerfile)
    build, final = image.base_images
    assert build == final
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", final)
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", image.user)
    assert image.stop_signal == "SIGTERM"
    assert image.environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert image.labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert {name for name in image.environment if re.search("TOKEN|SECRET|PASSWORD", name)} == set()
    assert "\nADD " not in dockerfile.read_text()


@each_dockerfile
def test_an_image_is_made_of_its_wheel_and_runs_its_command(dockerfile: Path) -> None:
    """It installs and runs the member in its folder; only its wheels are sent to a builder."""
    image, member = read_image(dockerfile), MEMBERS[dockerfile.parent]
    project = tomllib.loads((dockerfile.parent / "pyproject.toml").read_text())["project"]
    assert name_of(image.requirement) == member.name
    assert image.entrypoint[:2] == ("/opt/penstock/bin/python", "-m")
    assert f"{image.entrypoint[2]}.__main__:main" in project["entry-points"]["penstock.commands"].values()
    assert image.labels["org.opencontainers.image.description"] == project["description"]
    copied = [line for line in dockerfile.read_text().splitlines() if line.startswith("COPY")]
    assert copied == ["COPY dist/*.whl requirements.lock /wheels/", "COPY --from=build /opt/penstock /opt/penstock"]
    assert (ROOT / ".dockerignore").read_text().splitlines()[1:] == [
        "*",
        "!dist",
        "dist/*",
        "!dist/*.whl",
        "!requirements.lock",
    ]
    # Hashes of constraints are verified; without them each build would take whatever is newest.
    assert "pip install --no-cache-dir --require-hashes --requirement uv.txt" in image.build
    assert "--constraint requirements.lock" in image.build
    assert f"docker build -f {dockerfile.relative_to(ROOT)} -t" in (ROOT / "deploy" / "README.md").read_text()


@each_dockerfile
def test_health_is_asked_at_the_port_that_the_image_listens_on(dockerfile: Path) -> None:
    """By the service's own settings, so that a changed port or a certificate is not a reason for another check."""
    image = read_image(dockerfile)
    (port,) = image.ports
    if "--prefix" not in image.health:
        assert f":{port}/" in image.health[-1]
        assert image.command[-2:] == ("--port", str(port))
        return
    prefix = image.health[image.health.index("--prefix") + 1]
    assert image.environment[f"{prefix}_PORT"] == str(port)
    assert image.environment[f"{prefix}_HOST"] == "0.0.0.0"
