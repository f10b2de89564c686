"""The chart in `deploy/helm`, by Helm itself: it gives what the manifests have, and refuses values that cannot be."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "penstock"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm on the PATH")

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "an image of one's own": (
        {"image": {"prefix": "registry.internal/streams/", "tag": "1@sha256:0", "pullPolicy": "Always"}},
        '"registry.internal/streams/penstock-sink:1@sha256:0"',
    ),
    "a flag of a service": ({"reader": {"settings": {"audit-log": "-"}}}, 'PENSTOCK_READER_AUDIT_LOG, value: "-"'),
    "where pods go": ({"sink": {"pod": {"nodeSelector": {"disk": "fast"}}}}, "disk: fast"),
    "no role": ({"roleArn": ""}, "name: penstock\n"),
    "a reader alone": (
        {"registry": {"enabled": False}, "sink": {"enabled": False}, "reader": {"replicas": 5}, "networkPolicy": False},
        "replicas: 5",
    ),
}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a name that is none": ({"registry": {"replica": 3}}, "replica"),
    "no pods": ({"reader": {"replicas": 0}}, "replicas"),
    "several sinks": ({"sink": {"replicas": 2}}, "replicas"),
    "leases in a file that replicas do not share": ({"registry": {"settings": {"store": "sqlite:///a"}}}, "store"),
    "a number that would get an exponent": ({"reader": {"settings": {"buffer-bytes": 268435456}}}, "buffer-bytes"),
    "a variable in place of a flag": ({"reader": {"settings": {"BUFFER_BYTES": "1"}}}, "BUFFER_BYTES"),
    "what the chart sets itself": ({"sink": {"settings": {"token-file": "/t"}}}, "token-file"),
    "no region": ({"region": "Ireland"}, "region"),
}


def helm(*arguments: str, values: object = None) -> subprocess.CompletedProcess[str]:
    command = [str(HELM), *arguments, str(CHART), "--values", "-"]
    return subprocess.run(command, input=json.dumps(values or {}), capture_output=True, text=True, check=False)


def rendered(values: object = None) -> str:
    ended = helm("template", "penstock", "--namespace", "streams", values=values)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def by_name(text: str) -> dict[tuple[str, str], Any]:
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def containers(documents: dict[tuple[str, str], Any]) -> Iterator[Any]:
    for document in documents.values():
        yield from document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())


@needs_helm
def test_the_chart_gives_what_the_manifests_have() -> None:
    """Each object to the letter; images have the version of the packages, and a policy for pulling them."""
    chart = by_name(rendered())
    manifests = by_name((ROOT / "deploy" / "kubernetes" / "services.yaml").read_text())
    for container in containers(manifests):
        container |= {"image": f"{container['image']}:{VERSION}", "imagePullPolicy": "IfNotPresent"}
    for container in (*containers(chart), *containers(manifests)):
        # Their order says nothing.
        container["env"].sort(key=lambda one: one["name"])
    assert len([*containers(chart)]) == 3
    assert chart == manifests


@needs_helm
@pytest.mark.parametrize(("values", "words"), OTHERS.values(), ids=OTHERS)
def test_other_values_give_what_kubernetes_takes(values: dict[str, Any], words: str) -> None:
    """By Helm's own linter, and by the schema of each kind, in which no field is unknown."""
    assert helm("lint", "--strict", values=values).returncode == 0
    text = rendered(values)
    assert words in text
    documents = by_name(text)
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    if "registry" in values:
        assert {name for _, name in documents} == {"penstock", "reader"}


@needs_helm
@pytest.mark.parametrize(("values", "name"), WRONG.values(), ids=WRONG)
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], name: str) -> None:
    ended = helm("template", "penstock", values=values)
    assert ended.returncode != 0
    assert "don't meet the specifications of the schema" in ended.stderr
    assert name in ended.stderr
    assert ended.stdout == ""


@needs_helm
def test_an_installation_says_what_to_give_to_queries() -> None:
    """The endpoints by the names that certificates are for, those of readers one by one."""
    values = {"reader": {"replicas": 3}}
    ended = helm("install", "penstock", "--dry-run=client", "--namespace", "streams", values=values)
    assert ended.returncode == 0, ended.stderr
    notes = ended.stdout.partition("NOTES:")[2]
    assert "registryEndpoint  registry.streams.svc:50051\n" in notes
    assert "readerEndpoint    reader-0.reader:50052,reader-1.reader:50052,reader-2.reader:50052\n" in notes
    assert "sinkEndpoint      sink.streams.svc:50053\n" in notes
