import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from packaging.utils import canonicalize_name

from tools.dependencies import read_lock
from tools.prove.releases.containers import (
    BIN,
    COMPOSE,
    DEADLINE_SECONDS,
    FILE,
    ROOT,
    SERVICES,
    Machine,
    build_image,
    image_of,
    make_secrets,
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
    """One of each Dockerfile."""
    made = {service["build"]["dockerfile"] for service in SERVICES.values()}
    folders = [*(ROOT / "services").glob("*/pyproject.toml"), ROOT / "packages" / "emulator" / "pyproject.toml"]
    assert made == {f"{path.parent.relative_to(ROOT)}/Dockerfile" for path in folders}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_and_no_secret_of_its_own(name: str) -> None:
    """Read-only root, no capabilities, ports on loopback only, tokens in files."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert not any(variable.endswith("_TOKEN") for variable in service.get("environment", {}))
    assert [port.rpartition(":")[2] for port in service["ports"]] == [str(port) for port in image_of(name).ports]


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that other users may read, unlike pytest's own folders."""
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
    for name in SERVICES:
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


KINDS = ("token", "certificate", "key")
SECURED = ("registry", "reader", "sink", "stages")


def test_a_service_has_a_token_of_its_own() -> None:
    """And only its own certificate and key; the console, which asks all services, has no key."""
    given = {name: set(service.get("secrets", [])) for name, service in SERVICES.items()}
    assert {name: given[name] for name in SECURED} == {name: {f"{name}_{kind}" for kind in KINDS} for name in SECURED}
    assert given["console"] == {f"{name}_token" for name in (*SECURED, "console")} | {"authorities"}
    assert given["emulator"] == set()
    # Nothing else is shared: no volume belongs to two services, and no variable names a file that is not a secret.
    volumes = [mount.partition(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])]
    assert len(volumes) == len(set(volumes))
    for name, service in SERVICES.items():
        files = {text for variable, text in service.get("environment", {}).items() if variable.endswith("_FILE")}
        assert files == {f"/run/secrets/{secret}" for secret in given[name]}


def test_each_secret_is_another_and_a_certificate_is_for_its_service_alone(tmp_path: Path) -> None:
    """No key opens what another protects: not by being the same, and not by signing a certificate."""
    folder = tmp_path / "secrets"
    make_secrets(folder)
    assert {path.name for path in folder.iterdir()} == set(COMPOSE["secrets"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len({path.read_bytes() for path in folder.iterdir()}) == len(COMPOSE["secrets"])
    for name in SECURED:
        certificate = x509.load_pem_x509_certificate((folder / f"{name}_certificate").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [name, "localhost"]
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
        key = load_pem_private_key((folder / f"{name}_key").read_bytes(), password=None)
        assert key.public_key() == certificate.public_key()


def test_an_image_holds_what_it_needs_of_these_wheels_and_nothing_else_of_ours(images: dict[str, Path]) -> None:
    """Each Penstock package in an image is one of the wheels, and packages of other images are not in it."""
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
        processes = {}
        for name in SERVICES:
            processes[name] = stack.enter_context(machine.running(name))
        for name, process in processes.items():
            machine.wait_until_healthy(name, process)
            if user_words(image_of(name)):
                status = Path(f"/proc/{process.pid}/status").read_text()
                assert f"Uid:\t{image_of(name).user.partition(':')[0]}\t" in status
        # A service answers only with its token, over TLS.
        address = machine.local("console", SERVICES["console"]["environment"]["PENSTOCK_CONSOLE_REGISTRY_ENDPOINT"])
        asked = (*image_of("registry").entrypoint, "ls", "--json", "--endpoint", address)
        trusting = ("--ca-file", "/run/secrets/authorities")
        assert machine.ask("registry", *asked, *trusting, "--token-file", "/run/secrets/registry_token").returncode == 0
        assert machine.ask("registry", *asked, *trusting, "--token-file", "/run/secrets/console_token").returncode != 0
        processes["registry"].terminate()
        assert processes["registry"].wait(DEADLINE_SECONDS) == 0, machine.log("registry")
        assert machine.health("registry") == 1
        for name in reversed(SERVICES):
            processes[name].terminate()
        codes = {name: process.wait(DEADLINE_SECONDS) for name, process in processes.items()}
        assert set(codes.values()) == {0}, codes
    for secret in COMPOSE["secrets"]:
        held = (folder / "secrets" / secret).read_text().splitlines()
        assert not any(line in machine.log(name) for name in SERVICES for line in held)
