"""What lies in `deploy/` for Kubernetes and AWS: held against schemas, and against what services and documents say."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import hcl2
import kubernetes_validate
import pytest
import yaml

from penstock.registration._stores import dynamodb
from tools.prove.releases.dockerfiles import read_image

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
MANIFESTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}-{document['metadata']['name']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
SERVICES = {"registry": "consumer-registry", "reader": "shard-reader", "sink": "sink-gateway"}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_is_one_that_kubernetes_takes(manifest: Path) -> None:
    """By the schema of its kind, in which no field is unknown."""
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def workloads() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "services.yaml").read_text())
    return {one["metadata"]["name"]: one for one in documents if one["kind"] in ("Deployment", "StatefulSet")}


def test_the_manifests_start_what_outlives_a_job() -> None:
    """Those services that several queries share; each has an address."""
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "services.yaml").read_text()))
    addresses = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
    assert set(workloads()) == set(addresses) == set(SERVICES)
    for name, workload in workloads().items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert addresses[name]["selector"].items() <= labels.items()


@pytest.mark.parametrize("name", SERVICES)
def test_a_pod_runs_its_image_as_that_is_made(name: str) -> None:
    """Its port, user and health check are the image's; its variables are flags of the service; it has no rights."""
    folder = ROOT / "services" / SERVICES[name]
    image, pod = read_image(folder / "Dockerfile"), workloads()[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    prefix = f"PENSTOCK_{name.upper()}_"
    assert container["image"] == image.labels["org.opencontainers.image.title"]
    assert container["ports"][0]["containerPort"] == int(image.environment[f"{prefix}PORT"])
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == image.user
    check = ["/opt/penstock/bin/python", "-m", "penstock.rpc.health", "--prefix", prefix.rstrip("_")]
    assert container["livenessProbe"] == container["readinessProbe"]
    assert container["readinessProbe"]["exec"]["command"] == check
    assert all(f'"{part}"' in (folder / "Dockerfile").read_text() for part in check)
    flags = set(re.findall(r"`--([a-z-]+)", (folder / "README.md").read_text()))
    for variable in container["env"]:
        assert variable["name"].removeprefix(prefix).lower().replace("_", "-") in flags
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounted = {one["name"] for one in container["volumeMounts"]}
    claimed = {one["metadata"]["name"] for one in workloads()[name]["spec"].get("volumeClaimTemplates", ())}
    assert mounted == {one["name"] for one in pod["volumes"]} | claimed


def test_the_image_of_spark_takes_the_wheels_and_no_pyspark() -> None:
    """The linter has nothing to say; the image that it begins with has the PySpark."""
    path = DEPLOY / "spark" / "Dockerfile"
    linter = str(Path(sys.executable).with_name("hadolint"))
    ended = subprocess.run([linter, "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    text = path.read_text()
    assert "penstock-spark-plugin\n" in text
    assert "penstock-spark-plugin[" not in text


def test_terraform_allows_what_the_policies_do_and_makes_the_table_of_the_registry() -> None:
    """Actions are those of the policies in the documents, and of checkpoints on S3; keys are those of the store."""
    with (DEPLOY / "terraform" / "main.tf").open() as file:
        text = file.read()
    hcl2.loads(text)
    documented = (ROOT / "docs" / "pages" / "operations" / "iam.md").read_text()
    policies = dict(re.findall(r"<!-- policy: ([\w ]+) -->\n```json\n(.*?)```", documented, re.S))

    def allowed(*names: str) -> set[str]:
        return {one for name in names for one in re.findall(r'"((?:kinesis|dynamodb):\w+)"', policies[name])}

    given = set(re.findall(r'"((?:kinesis|dynamodb):\w+)"', text))
    assert given == allowed("efo", "write", "registry table") - {"dynamodb:CreateTable"}
    table = text[text.index('resource "aws_dynamodb_table"') :]
    keys = [re.findall(rf'{kind}_key +=  *"(\w+)"', table)[0] for kind in ("hash", "range")]
    assert keys == [one["AttributeName"] for one in dynamodb._KEY_SCHEMA]
    assert re.findall(r'name = "(\w+)"\n +type = "S"', table) == keys
