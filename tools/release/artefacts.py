"""Wheels and source archives: built, and looked into."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from tools.dependencies import LOCK
from tools.release.versions import Member

_STRAY = re.compile(r"(^|/)(tests?|__pycache__|\.[^/]+|conftest\.py)(/|$)|\.(pyc|pyo|orig|rej|log)$")


def build(member: Member, folder: Path, *, from_tree: bool = False, isolated: bool = True) -> None:
    """Build a member's source archive and, from it, its wheel; or the wheel straight from the tree.

    The build backend has the version and the hash of the lock. Not isolated, this environment's backend is used, which
    is quicker, but may be another than a release's.

    Raises:
        subprocess.CalledProcessError: it cannot be built; the reason is on standard error.
    """
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", "build", "-q", "--out-dir", str(folder)]
    if from_tree:
        command.append("--wheel")
    if isolated:
        command += ["--build-constraint", str(LOCK), "--require-hashes"]
    else:
        command += ["--no-build-isolation", "-p", sys.executable]
    subprocess.run([*command, str(member.folder)], check=True)


def wheel_of(member: Member, folder: Path) -> Path:
    """Where `build` leaves the wheel."""
    return folder / f"{member.wheel_stem}-py3-none-any.whl"


def archive_of(member: Member, folder: Path) -> Path:
    """Where `build` leaves the source archive."""
    return folder / f"{member.wheel_stem}.tar.gz"


def wheel_contents(wheel: Path) -> dict[str, int]:
    """Name and checksum of each file of a wheel."""
    with zipfile.ZipFile(wheel) as opened:
        return {item.filename: item.CRC for item in opened.infolist()}


def wheel_metadata(wheel: Path) -> dict[str, list[str]]:
    """The fields of a wheel's METADATA, in lower case, each with all of its values; `description` is the README."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        message = HeaderParser().parsestr(opened.read(name).decode())
    fields: dict[str, list[str]] = {}
    for field, value in message.items():
        fields.setdefault(field.lower(), []).append(str(value))
    fields["description"] = [str(message.get_payload())]
    return fields


def archive_names(archive: Path) -> list[str]:
    """Names in a source archive, without its top folder."""
    with tarfile.open(archive) as opened:
        return [name.partition("/")[2] for name in opened.getnames()]


def artefact_problems(member: Member, folder: Path) -> list[str]:
    """What is wrong with what `build` left, one line each."""
    wheel = wheel_of(member, folder)
    names = set(wheel_contents(wheel))
    found = [f"{wheel.name}: {name} does not belong there" for name in sorted(names) if _STRAY.search(name)]
    for init in ("penstock/__init__.py", "penstock/services/__init__.py"):
        if init in names:
            found.append(f"{wheel.name}: {init} would hide all other packages")
    typed = ["/py.typed"] if any(name.endswith(".py") for name in names) else []
    for wanted in ("/licenses/LICENSE", *typed):
        if not any(name.endswith(wanted) for name in names):
            found.append(f"{wheel.name}: no {wanted.rpartition('/')[2]} in it")
    packed = set(archive_names(archive_of(member, folder)))
    for wanted in ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"):
        if wanted not in packed:
            found.append(f"{member.wheel_stem}.tar.gz: no {wanted} in it")
    caches = sorted(name for name in packed if "__pycache__" in name or ".hypothesis" in name)
    return found + [f"{member.wheel_stem}.tar.gz: {name} does not belong there" for name in caches]
