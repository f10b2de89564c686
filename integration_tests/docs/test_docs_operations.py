"""What the pages about operations and migration say is so: policies, messages, commands, names and figures."""

import ast
import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from integration_tests.docs_aws_calls import SERVICES, called_by
from integration_tests.docs_pages import IAM, PAGES, POLICIES, ROOT, WRITTEN, actions, blocks, name_of
from penstock.async_sink import AggregationConfig, KinesisRequestEntry, KinesisStreamsSink
from penstock.aws import AwsOptions
from penstock.efo_consumer import Consumer
from penstock.emulator.testing import RunningEmulator, running_emulator
from penstock.spark_plugin import KinesisOptions


@pytest.fixture(scope="module")
def emulator() -> Iterator[RunningEmulator]:
    with running_emulator(region="eu-west-1", account_id="123456789012") as running:
        running.client().create_stream(StreamName="flights", ShardCount=1)
        yield running


@pytest.fixture
def aws(emulator: RunningEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AwsOptions:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keys: dict[str, Any] = {"access_key_id": "test", "secret_access_key": "test"}
    return AwsOptions(region="eu-west-1", endpoint_url=emulator.endpoint_url, **keys)


def calls(emulator: RunningEmulator) -> dict[str, int]:
    with urllib.request.urlopen(f"{emulator.endpoint_url}/_emulator/stats", timeout=30) as answer:
        found: dict[str, int] = json.loads(answer.read())["calls"]
        return found


def test_the_table_names_what_each_package_can_call() -> None:
    """Gathered from the sources by the service models: nothing is missing, nothing is there that is not called."""
    rows = re.findall(r"^\| `([a-z0-9]+:[A-Za-z]+)` \| ([^|]+) \|", IAM, re.MULTILINE)
    written: dict[str, set[str]] = {package: set() for package in SERVICES}
    for action, packages in rows:
        for package in re.findall(r"`([a-z-]+)`", packages):
            written[package].add(action)
    assert written == {package: called_by(package) for package in SERVICES}


def test_the_policies_allow_what_is_called_and_no_more() -> None:
    """All of them together; KMS is called by Kinesis, STS by boto3."""
    allowed = set().union(*map(actions, POLICIES))
    apart = {"kms:Decrypt", "kms:GenerateDataKey", "sts:AssumeRole"}
    assert allowed - apart == set().union(*map(called_by, SERVICES))
    assert len(POLICIES) >= 14
    assert {policy["Version"] for policy in POLICIES.values()} == {"2012-10-17"}


def test_only_actions_without_resources_are_allowed_on_all() -> None:
    """ListStreams; and a trust policy, which is the role's own, names none."""
    on_all = {name for name, policy in POLICIES.items() for one in policy["Statement"] if one.get("Resource") == "*"}
    without = {name for name, policy in POLICIES.items() for one in policy["Statement"] if "Resource" not in one}
    assert on_all == {"pattern", "dynamodb table"}
    assert [actions(name) for name in sorted(on_all)] == [{"dynamodb:ListStreams"}, {"kinesis:ListStreams"}]
    assert without == {"trust"}


async def read_some(consumer: Consumer, count: int) -> None:
    async with consumer, asyncio.timeout(60):
        seen = 0
        async for batch in consumer:
            seen += batch.records.num_rows
            if seen >= count:
                return


# Asked only when something is wrong, or at the limit of consumers.
SELDOM = {"kinesis:DescribeStreamSummary", "kinesis:DescribeStreamConsumer", "kinesis:ListStreamConsumers"}


@pytest.mark.parametrize("name", ["polling", "efo", "write"])
async def test_a_policy_matches_the_calls_of_its_use(
    name: str, emulator: RunningEmulator, aws: AwsOptions, tmp_path: Path
) -> None:
    """Counted by the emulator, from the start to the end of the use."""
    before = calls(emulator)
    sink = KinesisStreamsSink(aws, "flights", aggregation=AggregationConfig())
    async with sink.create_writer() as writer:
        await writer.write(KinesisRequestEntry(b"x", partition_key="key"))
    wrote = {f"kinesis:{one}" for one, count in calls(emulator).items() if count > before.get(one, 0)}
    if name == "write":
        assert wrote == actions("write")
        return
    before = calls(emulator)
    path = tmp_path / "checkpoints.db"
    efo = "delays-job" if name == "efo" else None
    consumer = Consumer("flights", efo=efo, name="docs", start="TRIM_HORIZON", checkpoints=path, aws=aws)
    await read_some(consumer, 1)
    called = {f"kinesis:{one}" for one, count in calls(emulator).items() if count > before.get(one, 0)}
    assert called <= actions(name)
    # Ranges are read again by polling, where they are no longer buffered.
    again = {"kinesis:GetShardIterator", "kinesis:GetRecords"} if name == "efo" else set()
    assert actions(name) - called <= SELDOM | again


@cache
def texts() -> str:
    """All texts of the sources, an expression inside of one as a blank line, `$option` without the sign."""
    found = []
    for file in [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("services/*/src/**/*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return re.sub(r"\$(?=[a-z])", "", "\n\n".join(found))


# Messages of Spark and of AWS, and states of metrics, which are not in our sources.
OF_OTHERS = (
    "(Spark's)",
    "(the disk's)",
    "grows",
    "nothing at all",
    "rows have",
    "a change of",
    "metrics twice",
    "no spans",
    "the job ",
    "the driver runs out",
)


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_every_message_is_in_the_sources(page: Path) -> None:
    """The first column of the tables below "What can go wrong" and "Messages" quotes the sources."""
    _, _, table = re.sub(r"^## Messages$", "**What can go wrong**", page.read_text(), flags=re.MULTILINE).partition(
        "**What can go wrong**"
    )
    for cell in (line.split("|")[1] for line in table.partition("\n## ")[0].splitlines() if line.startswith("|")):
        if any(words in cell for words in OF_OTHERS):
            for word in re.findall(r"`(\w+)`", cell.split("(Spark's)")[0] if "grows" in cell else ""):
                assert word in NAMES_OF_METRICS or word in texts(), word
            continue
        for message in re.findall(r"`([^`]+)`", cell):
            for piece in filter(None, (one.strip() for one in message.split("…"))):
                assert piece in texts() or piece in OF_KINESIS, f"{page.name}: {piece!r}"


OF_KINESIS = {"KMSAccessDeniedException", "ProvisionedThroughputExceededException"}
# The names of metrics, which other tests compare with the metrics that the packages report.
NAMES_OF_METRICS = (ROOT / "packages" / "telemetry" / "src" / "penstock" / "telemetry" / "reference.json").read_text()

README_TEXTS = "\n".join(
    file.read_text() for file in [*ROOT.glob("packages/*/README.md"), *ROOT.glob("services/*/README.md")]
)
COMMANDS = {
    "registry": "services.consumer_registry",
    "reader": "services.shard_reader",
    "sink": "services.sink_gateway",
    "stages": "services.stage_scheduler",
    "console": "services.console",
}
LINES = sorted(
    {
        line.removeprefix("$ ").split("#")[0].strip()
        for page in WRITTEN
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.startswith(("$ python -m penstock.emulator", *(f"$ penstock {name} " for name in COMMANDS)))
    }
)


@pytest.mark.parametrize("line", LINES)
def test_every_command_has_its_flags(line: str) -> None:
    """Each flag on a page's command line is in the help of that command."""
    command, *rest = line.replace("python -m penstock.", "penstock ").split()[1:]
    module = f"penstock.{COMMANDS.get(command, command)}"
    verb = rest[:1] if rest and not rest[0].startswith("-") else []
    shown = subprocess.run(
        [sys.executable, "-m", module, *verb, "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    for flag in re.findall(r"(?<!\S)--[a-z-]+", line):
        assert flag in shown, f"{flag} of {command} {' '.join(verb)}"


def test_the_pages_have_commands() -> None:
    """The test above looks at something."""
    assert len(LINES) >= 8


def test_every_bench_and_every_test_that_is_named_exists() -> None:
    """`hatch run bench NAME`, and files of tests."""
    written = "\n".join(page.read_text() for page in WRITTEN)
    benches = set(re.findall(r"hatch run bench ([a-z-]+)", written))
    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
    ).stdout
    assert len(benches) >= 8
    assert {one for one in benches if one not in listed} == set()
    tests = set(re.findall(r"`(test_\w+\.py)`", written))
    there = {file.name for kind in ("packages", "services") for file in ROOT.glob(f"{kind}/*/tests/**/*.py")}
    there |= {file.name for file in ROOT.glob("integration_tests/**/*.py")}
    assert len(tests) >= 8
    assert tests - there == set()


def test_messages_are_in_alphabetical_order() -> None:
    """Readers look for the first words of their message."""
    table = (PAGES / "troubleshooting.md").read_text().partition("\n## Messages\n")[2].partition("\n## ")[0]
    first = [found.lower() for found in re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)]
    words = [re.sub(r"[^a-z0-9 ]", "", one).strip() for one in first]
    assert len(words) >= 30
    assert words == sorted(words)


def test_pages_for_users_name_no_tests() -> None:
    """The names of tests are on the pages for contributors."""
    pages = [page for page in WRITTEN if page.parent.name != "contributors"]
    assert {page.name: found for page in pages if (found := re.findall(r"`(test_\w+)", page.read_text()))} == {}


@pytest.mark.parametrize("page", ["how-to/metrics-and-traces", "operations/alerts", "troubleshooting"])
def test_every_metric_and_span_that_is_named_exists(page: str) -> None:
    """They are in the READMEs' tables, or belong to Spark or CloudWatch."""
    text = (PAGES / f"{page}.md").read_text()
    named = set(re.findall(r"`([a-z]+[A-Z][A-Za-z]+|[a-z_]+\.[a-z_]+)`", text))
    theirs = {"lastProgress", "durationMs", "addBatch", "latestOffset", "walCommit", "commitOffsets", "batchId"}
    assert named
    assert {one for one in named - theirs if one not in NAMES_OF_METRICS and one not in texts()} == set()


def test_every_alert_that_is_named_exists() -> None:
    """The table has the rules that are shipped, by their names."""
    rules = (ROOT / "packages/telemetry/prometheus/alerts.yaml").read_text()
    named = set(re.findall(r"`(Penstock\w+)`", (PAGES / "operations" / "alerts.md").read_text()))
    assert len(named) >= 9
    assert named - set(re.findall(r"alert: (\w+)", rules)) == set()


def test_every_measured_figure_of_sizing_has_a_command() -> None:
    """Figures are copied from the READMEs or the page of measurements, which give the command of each."""
    text = (PAGES / "operations" / "sizing.md").read_text()
    measured = README_TEXTS + (PAGES / "operations" / "measurements.md").read_text()
    figures = set(re.findall(r"\b\d{3},000\b|\b1,\d{3},000\b|\b\d+ ms\b|\b\d{3} MB/s|\b0\.998\b", text))
    missing = {one for one in figures if one.removesuffix(" ms") not in measured and one not in ("1,000,000",)}
    assert missing - {"100,000", "300,000"} == set()  # of an example, and of a guess that says so


def test_positions_are_read_out_of_a_checkpoint_of_the_aws_connector(tmp_path: Path) -> None:
    """As its sources write it: what executors noted of the last committed micro-batch, and our option takes it."""
    fields = {"iteratorType": "AFTER_SEQUENCE_NUMBER", "subSequenceNumber": "-1", "isLast": "true"}
    ids = [f"shardId-00000000000{number}" for number in range(3)]
    offset = {one: {**fields, "iteratorPosition": "1"} for one in ids} | {"metadata": {"batchId": "6"}}
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    (tmp_path / "commits" / "7").write_text("v1\n{}")
    (tmp_path / "commits" / ".7.crc").write_text("")
    (tmp_path / "offsets" / "7").write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    (tmp_path / "offsets" / "8").write_text("not committed")
    folder = tmp_path / "sources" / "0" / "shard-source" / "6"
    folder.mkdir(parents=True)
    noted = {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": "22", "subSequenceNumber": -1, "isLast": True}
    (folder / ids[0]).write_text(json.dumps({"shardId": ids[0], **noted}))
    (folder / ids[1]).write_text(json.dumps({"shardId": ids[1], **noted, "iteratorType": "SHARD_END"}))
    (code,) = (one for _, one in blocks(PAGES / "migration" / "aws-connector.md") if "def positions" in one)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    found = namespace["positions"](tmp_path)
    assert found == {ids[0]: "22", ids[1]: "SHARD_END", ids[2]: "1"}
    KinesisOptions.parse({"streamName": "flights", "initialPosition": json.dumps(found)})
    (folder / ids[0]).write_text(json.dumps({"shardId": ids[0], **noted, "isLast": False}))
    with pytest.raises(ValueError, match="by a time"):
        namespace["positions"](tmp_path)


OTHERS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")),
    *(page for kind in ("packages", "services") for page in sorted(ROOT.glob(f"{kind}/*/README.md"))),
]


@pytest.mark.parametrize("page", [*WRITTEN, *OTHERS], ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a page or a folder that exists, and to a heading of the page; others' pages by https."""
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if PAGES / "reference" in found.parents or found == PAGES / "contributors" / "contracts.md":
            continue  # generated: the test of the built site follows these links
        assert found.is_file() or (found.is_dir() and page in OTHERS), f"{page.name}: {target}"
        if anchor and found.suffix == ".webp":
            assert anchor in ("only-light", "only-dark"), f"{page.name}: {target}"  # the theme's: for which colours
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^a-z0-9 -]", "", one.lower()).replace(" ", "-") for one in headings}
            assert anchor in slugs, f"{page.name}: {target}"
