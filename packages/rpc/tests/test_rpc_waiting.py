"""What keeps tasks of a loop, and processes of a machine, waiting for each other."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.rpc import RpcOptionError, Signal, lock_file, read_number, unlock_file

HOLDER = """
import sys, time
from penstock.rpc import lock_file
file = open(sys.argv[1], "w")
print(lock_file(file), flush=True)
time.sleep(600)
"""


async def test_a_signal_wakes_all_waiters_in_their_order() -> None:
    changed, woken = Signal(), list[int]()

    async def wait(number: int) -> None:
        await changed.wait()
        woken.append(number)

    waiting = [asyncio.create_task(wait(number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    changed.notify()
    late = asyncio.create_task(wait(3))
    await asyncio.wait(waiting)
    assert woken == [0, 2]
    assert not late.done(), "who came after the notification waits for the next one"
    changed.notify()
    await late


async def test_a_wait_for_a_signal_ends_after_its_timeout() -> None:
    await Signal().wait(0.01)
    with pytest.raises(TimeoutError):
        # A time-out of the caller is the caller's.
        async with asyncio.timeout(0.01):
            await Signal().wait(600)


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "True\n"
            with path.open() as file:
                assert not lock_file(file)
                holder.kill()
                assert lock_file(file, wait=True)
        finally:
            holder.kill()


def test_a_file_that_is_unlocked_is_free_for_another(tmp_path: Path) -> None:
    one, other = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    try:
        assert lock_file(one)
        assert not lock_file(other)
        unlock_file(one)
        assert lock_file(other)
    finally:
        os.close(one)
        os.close(other)


@pytest.mark.parametrize("text", ["soon", "", "1.5", "1e400"])
def test_an_invalid_number_is_refused_with_the_name_of_its_setting(text: str) -> None:
    with pytest.raises(RpcOptionError, match=f"'{text}' is not a whole number") as refused:
        read_number("max_jobs", text, int, of="a whole number")
    assert refused.value.option == "max_jobs"
    assert read_number("max_jobs", "12", int) == 12
