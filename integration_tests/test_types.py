"""What a type checker says to small programs that use the public API: wrong ones are refused, right ones are not."""

import re
import sys
from pathlib import Path

from mypy import api

WRONG = {
    "text_to_a_sink_without_a_converter": """
        async def run() -> None:
            for sink in (KinesisStreamsSink(AWS, "flights"), KinesisStreamsSink(AWS, stream_arn="arn")):
                async with sink.create_writer() as writer:
                    await writer.write("text")  # error: arg-type
            async with FirehoseSink(AWS, "late").create_writer() as archive:
                await archive.write(KinesisRequestEntry(b"late", "EWR"))  # error: arg-type
    """,
    "another_element_than_the_converter_takes": """
        def entry(delay: int) -> KinesisRequestEntry:
            return KinesisRequestEntry(b"%d" % delay, "EWR")

        async def run() -> None:
            async with KinesisStreamsSink(AWS, "flights", converter=entry).create_writer() as writer:
                await writer.write("text")  # error: arg-type
    """,
    "start_by_a_number": """
        Consumer("flights", start=5)  # error: arg-type
        Consumer("flights", start={"flights": 5})  # error: dict-item
    """,
    "rows_of_a_batch_as_text": """
        async def run(consumer: Consumer) -> None:
            async for batch in consumer:
                batch.records.num_rows + "1"  # error: operator
                batch.records.to_pylist().upper()  # error: attr-defined
                await consumer.commit("flights")  # error: arg-type
    """,
}
RIGHT = """
    def entry(delay: int) -> KinesisRequestEntry:
        return KinesisRequestEntry(b"%d" % delay, "EWR")

    async def write(batch: pa.RecordBatch) -> None:
        async with KinesisStreamsSink(AWS, "flights").create_writer() as writer:
            await writer.write(KinesisRequestEntry(b"late", "EWR"))
            await writer.write_many([KinesisRequestEntry(b"late", "EWR")])
            await writer.write_many(batch)
        converter = KinesisElementConverter(str.encode, PartitionKey.random())
        async with KinesisStreamsSink(AWS, "flights", converter=converter).create_writer() as texts:
            await texts.write("late")
        async with KinesisStreamsSink(AWS, "flights", converter=entry).create_writer() as delays:
            await delays.write(15)
        async with FirehoseSink(AWS, "late").create_writer() as archive:
            await archive.write(FirehoseRequestEntry(b"late"))

    async def read() -> pa.RecordBatch:
        start = InitialPosition.parse("AT_TIMESTAMP", "2026-01-31T12:00:00Z")
        async with Consumer(["flights", "delays"], start={"flights": "LATEST", "delays": start}) as consumer:
            async for batch in consumer:
                rows: int = batch.records.slice(0, 10).num_rows
                first: dict[str, object] = batch.records.to_pylist()[rows - 1]
                print(first, batch.records.column("data"), batch.positions.streams.keys())
                await consumer.commit(batch)
                return batch.records
            async for record in consumer.records():
                data: bytes = record.data
                print(data)
        raise AssertionError
"""
HEAD = """
    import pyarrow as pa

    from penstock.async_sink import (
        FirehoseRequestEntry,
        FirehoseSink,
        KinesisElementConverter,
        KinesisRequestEntry,
        KinesisStreamsSink,
        PartitionKey,
    )
    from penstock.aws import AwsOptions
    from penstock.efo_consumer import Consumer, InitialPosition

    AWS = AwsOptions(region="eu-west-1")
"""


def dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    depth = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return "\n".join(line[depth:] for line in lines) + "\n"


def test_wrong_programs_are_refused_and_right_ones_are_not(tmp_path: Path) -> None:
    """As mypy sees the installed packages, strict, in the lines that say so and in no others."""
    for name, text in {**WRONG, "right": RIGHT}.items():
        (tmp_path / f"{name}.py").write_text(dedented(HEAD) + dedented(text))
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\n[mypy-pyarrow.*]\nignore_missing_imports = True\n")
    flags = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache"), "--python-executable"]
    said, problems, _ = api.run([*flags, sys.executable, "--no-error-summary", str(tmp_path)])
    assert not problems, problems
    found = {
        (Path(match[1]).stem, int(match[2]), match[3])
        for match in re.finditer(r"^(.+?):(\d+): error: .*\[([a-z-]+)\]$", said, re.MULTILINE)
    }
    wanted = {
        (file.stem, number, match[1])
        for file in tmp_path.glob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := re.search(r"# error: ([a-z-]+)$", line))
    }
    assert found == wanted, said
