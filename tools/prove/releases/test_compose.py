import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tools.dependencies import read_lock
from tools.prove.releases.containers import (
    BIN,
    COMPOSE,
    DEADLINE_SECONDS,
    FILE,
    LASTING,
    ROOT,
    SERVICES,
    Machine,
    build_image,
    image_of,
    user_words,
)
from tools.release.artefacts import build
from tools.release.versions import find_members


def test_the_file_is_one_that_compose_takes() -> None:
    """By the schema of the compose specification; what it names it declares."""
    ended = subprocess.run(
        [str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(FILE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    for service in SERVICES.values():
        assert {mount.partition(":")[0] for mount in service.get("volumes", [])} <= set(COMPOSE["volumes"])
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
        assert set(service.get("depends_on", [])) <= set(SERVICES)


def test_it_starts_all_services_the_console_and_the_emulator() -> None:
    """One of each Dockerfile, and what makes certificates, which ends."""
    made = {SERVICES[name]["build"]["dockerfile"] for name in LASTING}
    folders = [*(ROOT / "services").glob("*/pyproject.toml"), ROOT / "packages" / "emulator" / "pyproject.toml"]
    assert made == {f"{path.parent.relative_to(ROOT)}/Dockerfile" for path in folders}
    assert set(SERVICES) - set(LASTING) == {"certificates"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_and_no_secret_of_its_own(name: str) -> None:
    """Read-only root, no capabilities, ports on loopback only, tokens in files."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert not any(variable.endswith("_TOKEN") for variable in service.get("environment", {}))
    if name in LASTING:
        assert [port.rpartition(":")[2] for port in service["ports"]] == [str(port) for port in image_of(name).ports]


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """Where users other than that of the tests may read, which pytest's own folders do not let them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def images(open_folder: Path) -> dict[str, Path]:
    """By Dockerfile, what `/opt/penstock` is in its image: made by its own commands, of the wheels alone."""
    wheels = open_folder / "dist"
    for member in find_members(ROOT):
        build(member, wheels, from_tree=True, isolated=False)
    (wheels / ".gitignore").unlink(missing_ok=True)
    made = {}
    for name in LASTING:
        folder = open_folder / "images" / name
        folder.mkdir(parents=True)
        made[SERVICES[name]["build"]["dockerfile"]] = build_image(image_of(name), folder, wheels)
    return made


def test_an_image_holds_of_others_what_the_lock_says(images: dict[str, Path]) -> None:
    """Each at its locked version, whose hashes were verified."""
    locked = {(one.name, one.version) for one in read_lock((ROOT / "requirements.lock").read_text())}
    for environment in images.values():
        folders = [path.stem for path in environment.glob("lib/python3*/site-packages/*.dist-info")]
        held = {(canonicalize_name(name), version) for name, _, version in (one.partition("-") for one in folders)}
        others = {one for one in held if not one[0].startswith("penstock-")}
        assert len(others) > 5
        assert others - locked == set()


def test_a_service_has_a_token_of_its_own() -> None:
    """And no other; only the console has those of all, which it asks."""
    tokens = {name: set(SERVICES[name].get("secrets", [])) for name in LASTING}
    assert tokens["console"] == set(COMPOSE["secrets"])
    assert [tokens[name] for name in ("registry", "reader", "sink", "stages")] == [
        {f"{name}_token"} for name in ("registry", "reader", "sink", "stages")
    ]


def test_an_image_holds_what_it_needs_of_these_wheels_and_nothing_else_of_ours(images: dict[str, Path]) -> None:
    """Each package of ours in an image is one of the wheels, and another image's packages are not in it."""
    listed = {}
    for dockerfile, environment in images.items():
        versions = {path.name for path in environment.glob("lib/python3*/site-packages/penstock_*.dist-info")}
        listed[dockerfile] = {name.partition("-")[0] for name in versions}
        for direct in environment.glob("lib/python3*/site-packages/penstock_*.dist-info/direct_url.json"):
            assert "/wheels/penstock_" in direct.read_text()
            versions.discard(direct.parent.name)
        assert versions == set()
        assert not list(environment.glob("lib/python3*/site-packages/pyspark*"))
    assert "penstock_sink_gateway" not in listed["services/shard-reader/Dockerfile"]
    assert "penstock_console" not in listed["services/sink-gateway/Dockerfile"]


@pytest.mark.timeout(300)
def test_what_it_starts_becomes_healthy_and_ends_cleanly(images: dict[str, Path], open_folder: Path) -> None:
    """The same commands, variables and files as processes of the images' user: healthy, protected, ended by SIGTERM."""
    folder = open_folder / "machine"
    folder.mkdir()
    machine = Machine(folder, images)
    with ExitStack() as stack:
        machine.run_to_its_end("certificates")
        machine.run_to_its_end("certificates")
        processes = {}
        for name in LASTING:
            processes[name] = stack.enter_context(machine.running(name))
        for name, process in processes.items():
            machine.wait_until_healthy(name, process)
            if user_words(image_of(name)):
                status = Path(f"/proc/{process.pid}/status").read_text()
                assert f"Uid:\t{image_of(name).user.partition(':')[0]}\t" in status
        # Without its token a service answers nobody; with it, over TLS, it does.
        address = machine.local("console", SERVICES["console"]["environment"]["PENSTOCK_CONSOLE_REGISTRY_ENDPOINT"])
        asked = (*image_of("registry").entrypoint, "ls", "--json", "--endpoint", address)
        trusting = ("--ca-file", "/certificates/client.pem")
        assert machine.ask("registry", *asked, *trusting, "--token-file", "/run/secrets/registry_token").returncode == 0
        assert machine.ask("registry", *asked, *trusting, "--token-file", "/run/secrets/console_token").returncode != 0
        processes["registry"].terminate()
        assert processes["registry"].wait(DEADLINE_SECONDS) == 0, machine.log("registry")
        assert machine.health("registry") == 1
        for name in reversed(LASTING):
            processes[name].terminate()
        codes = {name: process.wait(DEADLINE_SECONDS) for name, process in processes.items()}
        assert set(codes.values()) == {0}, codes
    for secret in COMPOSE["secrets"]:
        assert not any(f"{secret}-of-these-tests" in machine.log(name) for name in LASTING)
