"""`hatch run prove fuzz` in small: each target handles malformed input, and failures are found."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tools.prove import fuzz

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_malformed_input_gets_an_expected_answer(name: str) -> None:
    """Some hundred inputs, the same in each run; the target's own ones are answered in several ways."""
    target, chance = fuzz.TARGETS[name], random.Random(name)
    seeds = target.seeds()
    ways = {target.attempt(one) for one in seeds}
    ways |= {target.attempt(fuzz.changed(chance.choice(seeds), seeds, chance)) for _ in range(300)}
    assert len(ways) > 1, "nothing that was changed made any difference"


def test_there_is_a_target_for_each_service_and_all_that_is_read() -> None:
    """With a bound on its memory, which is less than what one message may take."""
    services = {"consumer-registry", "shard-reader", "sink-gateway", "stage-scheduler"}
    assert {name.removeprefix("calls-") for name in fuzz.TARGETS if name.startswith("calls-")} == services
    kept = {
        "offset",
        "spark-checkpoint",
        "consumer-checkpoint",
        "principals",
        "tokens",
    }
    assert kept | {"event-stream", "kpl", "http-answer"} <= fuzz.TARGETS.keys()
    assert all(0 < target.memory_bytes <= 128 * 2**20 for target in fuzz.TARGETS.values())


# What longer runs have found.
FOUND = [
    ("offset", b'{"version": 1, "streams": {}, "epoch": Infinity}'),
    ("offset", b'{"version": 1, "streams": {}, "epoch": 1e999}'),
    ("principals", b'[[principal]]\nname = "a"\ncertificate = "a"\ncalls_at_once = 1' + b"0" * 5000),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_past_findings_stay_repaired(name: str, data: bytes) -> None:
    """Input by input."""
    fuzz.TARGETS[name].attempt(data)


def test_a_run_keeps_its_corpus_and_reports_the_number_of_inputs(tmp_path: Path) -> None:
    """In a process of its own, with bounds. By hand each run has a new seed, here all have the same."""
    command = [sys.executable, "-m", "tools.prove", "fuzz", "--minutes", "0.01", "--corpus", str(tmp_path)]
    command += ["--only", "principals", "--seed", "1"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "inputs were answered as they should be" in ran.stdout
    assert list((tmp_path / "principals").glob("*.input"))


@pytest.mark.parametrize(
    ("attempt", "words"), [("raise KeyError(data)", "KeyError"), ("while True: pass", "longer than")]
)
def test_an_input_that_breaks_a_target_is_kept(tmp_path: Path, attempt: str, words: str) -> None:
    """The input causes an unexpected error, or a hang."""
    (tmp_path / "broken.py").write_text(f"""
import sys
from tools.prove import fuzz
from tools.prove.__main__ import main

def attempt(data):
    if data != b"fine":
        {attempt}
    return "fine"

fuzz.TARGETS["tokens"] = fuzz.Target(lambda: [b"fine"], attempt)
if "--in-this-process" not in sys.argv:
    popen = fuzz.subprocess.Popen
    fuzz.subprocess.Popen = lambda command, **options: popen([command[0], __file__, *command[3:]], **options)
    fuzz.LONGEST_SECONDS = 1.0
sys.exit(main())
""")
    command = [sys.executable, str(tmp_path / "broken.py"), "fuzz", "--only", "tokens", "--minutes", "0.1"]
    ran = subprocess.run(
        [*command, "--corpus", str(tmp_path)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert words in ran.stdout
    (kept,) = (tmp_path / "tokens").glob("*.broken")
    assert kept.read_bytes() != b"fine"
