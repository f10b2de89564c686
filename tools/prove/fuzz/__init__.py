"""Invalid bytes end in a typed error: never in another error, never in a hang, never in much memory.

One target, `sink-user-code`, reads no bytes of others: they say where code of the user raises inside of a writer.

Each target runs in a process of its own, whose memory has the target's bound. Inputs are made of a corpus: what comes
with the target, and whatever was answered in a new way before. An input is on disk before it is tried, so that one
which ends its process is known, too.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import random
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.prove.fuzz.calls import CALLS, RULES
from tools.prove.fuzz.files import FILES
from tools.prove.fuzz.parsers import PARSERS
from tools.prove.fuzz.sink import SINK
from tools.prove.fuzz.target import LONGEST_INPUT, MEBIBYTE, Target

if TYPE_CHECKING:
    import argparse

SUMMARY = "invalid bytes end in a typed error, in time and in little memory"

SLICE_SECONDS = 10.0
"""Seconds for one target, before the next one has its turn."""
LONGEST_SECONDS = 5.0
"""Seconds of processor time for one input; six times as long by the clock, for an input that only waits."""
MOST_KEPT = 2_000
"""Inputs of a target in the corpus."""
TARGETS: dict[str, Target] = {**PARSERS, **FILES, **CALLS, **RULES, **SINK}
_NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 30, b"2147483648", b"-9223372036854775809", b"null", b"true", b'""')
_BYTES = (0, 1, 7, 8, 0x0A, 0x0D, 0x20, 0x22, 0x3D, 0x5B, 0x5C, 0x7F, 0x80, 0xC0, 0xFF)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--minutes", type=float, default=10.0, help="in all; default: 10")
    parser.add_argument("--seed", type=int, help="of the inputs, as a run names it; default: random")
    parser.add_argument("--only", choices=sorted(TARGETS), action="append", help="these targets; default: all")
    parser.add_argument(
        "--corpus", type=Path, help="folder that keeps inputs which were answered in a new way; default: a new one"
    )
    parser.add_argument("--in-this-process", metavar="SECONDS", type=float, help="one target, without bounds")


def run(arguments: argparse.Namespace) -> bool:
    """Try inputs, target by target, until the time is over or one is answered as none should be."""
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    names = arguments.only or sorted(TARGETS)
    if arguments.in_this_process is not None:
        return _try_inputs(names[0], seed, arguments.in_this_process, arguments.corpus)
    corpus = arguments.corpus or Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    print(f"seed {seed}, corpus {corpus}", flush=True)
    ends, tried, turn = time.monotonic() + 60 * arguments.minutes, dict.fromkeys(names, 0), 0
    while turn < len(names) or time.monotonic() < ends:
        name = names[turn % len(names)]
        seconds = min(SLICE_SECONDS, 60 * arguments.minutes / len(names))
        inputs = _run_slice(name, seed + turn, seconds, corpus)
        if inputs is None:
            return False
        tried[name] += inputs
        turn += 1
    for name, number in tried.items():
        kept = len(list((corpus / name).glob("*.input")))
        bound = TARGETS[name].memory_bytes // MEBIBYTE
        print(f"{name:24} {number:12,} inputs, {kept:6,} kept, in {bound} MiB")
    print(f"{sum(tried.values()):,} inputs were answered as they should be")
    return True


def _run_slice(name: str, seed: int, seconds: float, corpus: Path) -> int | None:
    """Inputs that were tried; None if one was answered as none should be."""
    (corpus / name).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tools.prove", "fuzz", "--only", name, "--seed", str(seed)]
    command += ["--corpus", str(corpus), "--in-this-process", str(seconds)]
    # For the previous slice: loading takes time, and would look like a hang.
    (corpus / name / "now").unlink(missing_ok=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    number, since, words = 0, (0.0, 0.0), ""
    while True:
        try:
            out, errors = process.communicate(timeout=0.5)
            if process.returncode == 0:
                return int(out.split()[-1])
            words = errors[-3_000:]
            break
        except subprocess.TimeoutExpired:
            now, spent = _state(corpus / name)[0], _spent(process.pid)
            if now == 0 or now != number:
                number, since = now, spent
            elif spent[0] - since[0] > LONGEST_SECONDS or spent[1] - since[1] > 6 * LONGEST_SECONDS:
                process.kill()
                process.communicate()
                words = f"it took longer than {LONGEST_SECONDS:g} s"
                break
    data = _state(corpus / name)[1]
    found = corpus / name / f"{hashlib.sha256(data).hexdigest()[:16]}.broken"
    found.write_bytes(data)
    print(f"{name}: {words}\nthe input is kept in {found}", flush=True)
    return None


def _spent(pid: int) -> tuple[float, float]:
    """Seconds of the processor that a process has had, and of the clock."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()


def _state(folder: Path) -> tuple[int, bytes]:
    try:
        content = (folder / "now").read_bytes()
    except FileNotFoundError:
        return 0, b""
    number, length = struct.unpack_from(">QQ", content)
    return number, content[16 : 16 + length]


def _try_inputs(name: str, seed: int, seconds: float, corpus: Path) -> bool:
    target, chance = TARGETS[name], random.Random(f"{name} {seed}")
    folder = corpus / name
    known = [*target.seeds(), *(file.read_bytes() for file in sorted(folder.glob("*.input")))]
    ways = {target.attempt(one) for one in known}
    with open(folder / "now", "w+b") as file:
        file.truncate(16 + LONGEST_INPUT)
        now = mmap.mmap(file.fileno(), 16 + LONGEST_INPUT)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + target.memory_bytes, resource.RLIM_INFINITY))
        ends, number = time.monotonic() + seconds, 0
        while number % 256 or time.monotonic() < ends:
            number += 1
            data = changed(chance.choice(known), known, chance)
            now[: 16 + len(data)] = struct.pack(">QQ", number, len(data)) + data
            way = target.attempt(data)
            if way not in ways and len(ways) < MOST_KEPT:
                ways.add(way)
                known.append(data)
                (folder / f"{hashlib.sha256(data).hexdigest()[:16]}.input").write_bytes(data)
        # What follows is the end of the process, and no input's fault.
        now[:8] = bytes(8)
    print(number)
    return True


def changed(data: bytes, known: Sequence[bytes], chance: random.Random) -> bytes:
    """The input, with some of it changed."""
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(made) + 1)
        span = min(len(made) - at, chance.choice((1, 1, 2, 4, 16, 64)))
        match chance.randrange(8):
            case 0:
                made[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                made[at : at + 1] = bytes([chance.choice(_BYTES)])
            case 2:
                del made[at : at + span]
            case 3:
                made[at:at] = made[at : at + span] * chance.choice((1, 1, 2, 100))
            case 4:
                other = chance.choice(known)
                begin = chance.randrange(len(other) + 1)
                made[at : at + span] = other[begin : begin + chance.choice((4, 16, 64, 1_000))]
            case 5:
                numbers = [found.span() for found in re.finditer(rb"-?[0-9.]+|null|true", made)]
                begin, end = chance.choice(numbers or [(at, at + span)])
                made[begin:end] = chance.choice(_NUMBERS)
            case 6:
                if at < len(made):
                    made[at] ^= 1 << chance.randrange(8)
            case _:
                made[at:at] = chance.randbytes(span or 1)
    return bytes(made[:LONGEST_INPUT])
