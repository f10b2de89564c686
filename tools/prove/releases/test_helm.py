"""The chart in `deploy/helm`, by Helm itself: it starts the services as their images are, and refuses wrong values."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import hcl2
import kubernetes_validate
import pytest
import yaml

from tools.prove.releases.dockerfiles import read_image

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "penstock"
SERVICES = {"registry": "consumer-registry", "reader": "shard-reader", "sink": "sink-gateway"}
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
    "a proxy": ({"proxy": {"domain": "example.com"}}, "hosts: [registry.example.com, sink.example.com]"),
    "a proxy of the sink": ({"proxy": {"domain": "a.b"}, "registry": {"enabled": False}}, "hosts: [sink.a.b]"),
    "no role": ({"reader": {"roleArn": ""}}, "name: penstock-reader\n# "),
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
    "one role for all": ({"roleArn": "arn:aws:iam::123456789012:role/penstock"}, "roleArn"),
    "a variable in place of a flag": ({"reader": {"settings": {"BUFFER_BYTES": "1"}}}, "BUFFER_BYTES"),
    "what the chart sets itself": ({"sink": {"settings": {"token-file": "/t"}}}, "token-file"),
    "a proxy for an address": ({"proxy": {"domain": "https://example.com"}}, "domain"),
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


def pods(documents: dict[tuple[str, str], Any]) -> dict[str, Any]:
    """What the pods of each workload are made of, by its name."""
    specs = {name: document.get("spec", {}) for (_, name), document in documents.items()}
    return {name: spec["template"]["spec"] for name, spec in specs.items() if "template" in spec}


@needs_helm
def test_the_chart_starts_what_outlives_a_job() -> None:
    """Those services that several queries share; each has an address, and all of its objects are valid."""
    documents = by_name(rendered())
    addresses = {name: document["spec"] for (kind, name), document in documents.items() if kind == "Service"}
    workloads = {name: documents[kind, name] for kind, name in documents if kind in ("Deployment", "StatefulSet")}
    assert set(workloads) == set(addresses) == set(SERVICES)
    for name, workload in workloads.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert addresses[name]["selector"].items() <= labels.items()
        assert documents["NetworkPolicy", "penstock"]["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    for document in documents.values():
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@needs_helm
@pytest.mark.parametrize("name", SERVICES)
def test_a_pod_runs_its_image_as_that_is_made(name: str) -> None:
    """Its port, user and health check are the image's; its variables are flags of the service; it has no rights."""
    folder = ROOT / "services" / SERVICES[name]
    image, pod = read_image(folder / "Dockerfile"), pods(by_name(rendered()))[name]
    (container,) = pod["containers"]
    prefix = f"PENSTOCK_{name.upper()}_"
    assert container["image"] == f"{image.labels['org.opencontainers.image.title']}:{VERSION}"
    assert container["ports"][0]["containerPort"] == int(image.environment[f"{prefix}PORT"])
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == image.user
    check = ["/opt/penstock/bin/python", "-m", "penstock.rpc.health", "--prefix", prefix.rstrip("_")]
    assert container["livenessProbe"] == container["readinessProbe"]
    assert container["readinessProbe"]["exec"]["command"] == check
    assert all(f'"{part}"' in (folder / "Dockerfile").read_text() for part in check)
    serve = [sys.executable, "-m", f"penstock.services.{SERVICES[name].replace('-', '_')}", "serve", "--help"]
    flags = set(re.findall(r"--([a-z-]+)", subprocess.run(serve, capture_output=True, text=True, check=True).stdout))
    for variable in container["env"]:
        assert variable["name"].removeprefix(prefix).lower().replace("_", "-") in flags
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}


@needs_helm
def test_a_pod_has_only_its_own_token_key_and_role() -> None:
    """No volume and no variable holds anything of another service, and the token of its account opens no API."""
    documents, roles = by_name(rendered()), {}
    for name, pod in pods(documents).items():
        (container,) = pod["containers"]
        assert "initContainers" not in pod
        assert not any("valueFrom" in variable for variable in container["env"])
        assert "envFrom" not in container
        own = {f"penstock-{name}-token", f"penstock-{name}-tls"}
        assert {one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one} == own
        assert [sorted(one) for one in pod["volumes"] if "secret" not in one] == [["emptyDir", "name"]]
        account = documents["ServiceAccount", pod["serviceAccountName"]]
        assert account["automountServiceAccountToken"] is False
        roles[account["metadata"]["name"]] = account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"]
        files = {one["name"].rpartition("_")[0]: one["value"] for one in container["env"] if "_FILE" in one["name"]}
        mounts = {one["mountPath"] for one in container["volumeMounts"] if one["name"] in ("token", "tls")}
        assert {str(Path(file).parent) for file in files.values()} == mounts
    assert len(roles) == len({name for kind, name in documents if kind == "ServiceAccount"}) == len(SERVICES)
    # Each account's role is the one that Terraform makes for it.
    with (ROOT / "deploy" / "terraform" / "main.tf").open() as file:
        made = hcl2.load(file)["locals"][0]["roles"]
    assert roles == {name: f"arn:aws:iam::123456789012:role/{name}" for name in set(made) - {"delays-job"}}


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
    if "networkPolicy" in values:
        assert {name for _, name in documents} == {"penstock-reader", "reader"}


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
    """The endpoints by the names in their certificates, with each reader separately."""
    values = {"reader": {"replicas": 3}}
    ended = helm("install", "penstock", "--dry-run=client", "--namespace", "streams", values=values)
    assert ended.returncode == 0, ended.stderr
    notes = ended.stdout.partition("NOTES:")[2]
    assert "registryEndpoint  registry.streams.svc:50051\n" in notes
    assert "readerEndpoint    reader-0.reader:50052,reader-1.reader:50052,reader-2.reader:50052\n" in notes
    assert "sinkEndpoint      sink.streams.svc:50053\n" in notes
