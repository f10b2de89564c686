"""Files of services that somebody else cuts, replaces or writes over while they are used."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from integration_tests.security_tools import DEADLINE, TOKEN, ask, path_of, raw_channel, running
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb

INSIDE = ("kept-here", "sqlite", "Error", "database", "another process", "/tmp")


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def replace(file: Path) -> None:
    new = file.with_name("new")
    new.write_bytes(file.read_bytes())
    new.replace(file)


def write_over(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(b"nonsense" * 64)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)


DAMAGE = [cut, empty, replace, write_over, flip, Path.unlink]


@pytest.mark.parametrize(("damage", "which"), [*((one, "") for one in DAMAGE), (cut, "-wal")])
def test_a_scheduler_acknowledges_nothing_behind_damaged_files(
    damage: Callable[[Path], None], which: str, tmp_path: Path
) -> None:
    """A submitted job exists, or its driver got an error. The log says what to do, and clients see no detail."""
    file = tmp_path / "kept-here.sqlite"
    with running("stage-scheduler", tmp_path, STORE=str(file), TOKEN=TOKEN) as service:
        methods = {method.name: path_of(method) for method in service.methods}

        def submit(job_id: str) -> tuple[grpc.StatusCode, str]:
            graph = pb.JobGraph(name="g")
            graph.vertices.add(name="only", kind=pb.VERTEX_KIND_SOURCE, parallelism=1)
            return ask(channel, methods["Submit"], pb.SubmitRequest(job_id=job_id, graph=graph).SerializeToString())

        with raw_channel(service.address) as channel:
            assert submit("before") == (grpc.StatusCode.OK, "")
            damage(file.with_name(file.name + which))
            for _ in range(2):
                code, words = submit("behind")
                assert code is grpc.StatusCode.INTERNAL
                assert words.endswith("the service's log says why")
                assert not any(inside in words for inside in INSIDE), words
        log = service.errors.read_text()
        assert "another process has changed it: restore a whole copy of it, and start again" in log
        assert "Traceback" not in log


def test_a_scheduler_on_a_full_disk_loses_nothing_that_it_acknowledged(tmp_path: Path) -> None:
    """Jobs are rejected while the disk is full, without naming the path. Later, all accepted jobs exist."""
    file = tmp_path / "kept-here.sqlite"
    taken: list[str] = []
    refused: list[str] = []
    with running("stage-scheduler", tmp_path, STORE=str(file), TOKEN=TOKEN) as service:
        methods = {method.name: path_of(method) for method in service.methods}

        def submit(job_id: str) -> tuple[grpc.StatusCode, str]:
            graph = pb.JobGraph(name="g")
            for number in range(5):
                place = "g" * 4_000
                graph.vertices.add(name=f"{number}", kind=pb.VERTEX_KIND_SOURCE, parallelism=1, call_site=place)
            return ask(channel, methods["Submit"], pb.SubmitRequest(job_id=job_id, graph=graph).SerializeToString())

        pid = service.process.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        with raw_channel(service.address) as channel:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (300_000, before[1]))
            for number in range(30):
                code, words = submit(f"job-{number}")
                (taken if code is grpc.StatusCode.OK else refused).append(f"job-{number}")
                if code is not grpc.StatusCode.OK:
                    assert code is grpc.StatusCode.INTERNAL
                    assert not any(inside in words for inside in INSIDE), words
            assert taken
            assert refused
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            assert submit("with-room") == (grpc.StatusCode.OK, "")
        service.process.process.kill()
        service.process.process.wait(DEADLINE)
    again = running("stage-scheduler", tmp_path, STORE=str(file), TOKEN=TOKEN)
    with again as service, raw_channel(service.address) as channel:
        for job_id in [*taken, "with-room"]:
            asked = pb.GetJobRequest(job_id=job_id).SerializeToString()
            assert ask(channel, methods["GetJob"], asked) == (grpc.StatusCode.OK, "")
