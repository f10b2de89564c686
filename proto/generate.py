"""Generate the gRPC contracts into packages/proto, or check that what is committed there is current.

Run by `hatch run codegen:generate` and `hatch run codegen:check`.
"""

import argparse
import filecmp
import os
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).resolve().parent
GENERATED = SOURCES.parent / "packages" / "proto" / "src"


def generate(target: Path) -> None:
    """Write the modules and stubs of every contract below `target`."""
    contracts = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.proto"))
    # protoc looks for its plug-ins on the PATH, where an environment that is not activated is missing.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    well_known = resources.files("grpc_tools") / "_proto"
    target.mkdir(parents=True, exist_ok=True)
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={SOURCES}",
            f"--proto_path={well_known}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *contracts,
        ]
    )
    if code != 0:
        sys.exit(f"protoc ended with {code}; its words are above")
    for folder in {path.parent for path in target.rglob("*_pb2.py")}:
        (folder / "__init__.py").touch()


def differences(fresh: Path, committed: Path) -> list[str]:
    """Names of the files that are not the same in both trees."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*_pb2*") if path.is_file()}
    present = {
        path.relative_to(committed)
        for path in committed.rglob("*_pb2*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    stale = wanted ^ present
    stale |= {name for name in wanted & present if not filecmp.cmp(fresh / name, committed / name, shallow=False)}
    return sorted(str(name) for name in stale)


def main() -> None:
    """Generate, or compare with `--check`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if anything is stale")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        if arguments.check:
            stale = differences(fresh, GENERATED)
            if stale:
                sys.exit("stale, run `hatch run codegen:generate`:\n" + "\n".join(stale))
            return
        for old in GENERATED.rglob("*_pb2*"):
            if old.is_file():
                old.unlink()
        shutil.copytree(fresh, GENERATED, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
