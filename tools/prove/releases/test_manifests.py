"""The job's manifests and the Terraform file of `deploy/`: checked by schemas, by the code and by the documents."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import hcl2
import kubernetes_validate
import pytest
import yaml

from integration_tests.docs_aws_calls import called_while_serving
from integration_tests.docs_pages import actions
from penstock.registration._stores import dynamodb

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
MANIFESTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}-{document['metadata']['name']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
SERVERS = {"registry": "consumer_registry", "reader": "shard_reader", "sink": "sink_gateway"}


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_is_one_that_kubernetes_takes(manifest: Path) -> None:
    """By the schema of its kind, in which no field is unknown."""
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_the_proxy_of_the_page_leads_to_the_services() -> None:
    """The Ingress is valid, and its backends are services that speak gRPC over TLS, by their names and ports."""
    page = (ROOT / "docs" / "pages" / "how-to" / "kubernetes.md").read_text()
    (block,) = (one for one in re.findall(r"```yaml\n(.*?)```", page, re.S) if "kind: Ingress" in one)
    ingress = yaml.safe_load(block)
    kubernetes_validate.validate(ingress, kubernetes_validate.latest_version(), strict=True)
    backends = [path["backend"]["service"] for rule in ingress["spec"]["rules"] for path in rule["http"]["paths"]]
    assert backends == [{"name": name, "port": {"name": "grpc"}} for name in ("registry", "sink")]
    for kind in ("grpc", "ssl"):
        assert ingress["metadata"]["annotations"][f"nginx.org/{kind}-services"] == "registry,sink"
    assert {rule["host"] for rule in ingress["spec"]["rules"]} == set(ingress["spec"]["tls"][0]["hosts"])


def test_the_image_of_spark_takes_the_wheels_and_no_pyspark() -> None:
    """The linter has nothing to say; the image that it begins with has the PySpark."""
    path = DEPLOY / "spark" / "Dockerfile"
    linter = str(Path(sys.executable).with_name("hadolint"))
    ended = subprocess.run([linter, "--no-color", str(path)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")
    text = path.read_text()
    assert "penstock-spark-plugin\n" in text
    assert "penstock-spark-plugin[" not in text


@cache
def terraform() -> dict[str, Any]:
    with (DEPLOY / "terraform" / "main.tf").open() as file:
        parsed: dict[str, Any] = hcl2.load(file)
    return parsed


def granted(role: str) -> dict[str, set[str]]:
    """The actions that a role allows, by the expression of the resources that it allows them on."""
    names = terraform()["locals"][0]
    found: dict[str, set[str]] = {}
    for statement in names["roles"][role]:
        actions, resources = statement["actions"], statement["resources"]
        listed = names[re.sub(r"^\$\{local\.|\}$", "", actions)] if isinstance(actions, str) else actions
        where = resources if isinstance(resources, str) else ", ".join(resources)
        found.setdefault(where.strip('"'), set()).update(action.strip('"') for action in listed)
    return found


def test_a_job_may_do_what_its_policies_say() -> None:
    """Enhanced fan-out, writing, and checkpoints on S3, by the policies in the documents."""
    given = set().union(*granted("delays-job").values())
    assert given == actions("efo") | actions("write") | actions("stages")


@pytest.mark.parametrize(("role", "service"), [(f"penstock-{name}", module) for name, module in SERVERS.items()])
def test_the_role_of_a_service_allows_what_the_service_calls(role: str, service: str) -> None:
    """As its code names the operations, and nothing else; the table of leases is made by Terraform."""
    assert set().union(*granted(role).values()) == called_while_serving(service) - {"dynamodb:CreateTable"}


def test_a_role_allows_each_action_where_it_is_needed() -> None:
    """The bucket is the job's alone, the table the registry's; only the gateway writes, and only to its streams."""
    bucket, table = "${aws_s3_bucket.checkpoints.arn}", "${aws_dynamodb_table.leases.arn}"
    read = {"${var.streams}", "${local.consumers}"}
    written = {f"${{var.destinations.{kind}}}" for kind in ("kinesis", "firehose", "dynamodb", "sqs")}
    assert {role: set(granted(role)) for role in terraform()["locals"][0]["roles"]} == {
        "delays-job": read | {"${var.destinations.kinesis}", bucket, f"{bucket}/*"},
        "penstock-registry": read | {table},
        "penstock-reader": read,
        "penstock-sink": written,
    }
    for role in ("delays-job", "penstock-registry", "penstock-reader", "penstock-sink"):
        for resources, allowed in granted(role).items():
            kinds = {action.partition(":")[0] for action in allowed}
            assert len(kinds) == 1
            assert ("PutRecords" in str(allowed)) == (resources == "${var.destinations.kinesis}")


def test_each_role_has_a_trust_policy_of_its_own() -> None:
    """An identity that may assume one role may not assume another."""
    (role,) = (one['"aws_iam_role"']['"role"'] for one in terraform()["resource"] if '"aws_iam_role"' in one)
    assert role["for_each"] == "${local.roles}"
    assert role["assume_role_policy"] == "${var.trust_policies[each.key]}"


def test_terraform_makes_the_table_of_the_registry() -> None:
    """Its keys are the keys of the store."""
    text = (DEPLOY / "terraform" / "main.tf").read_text()
    table = text[text.index('resource "aws_dynamodb_table"') :]
    keys = [re.findall(rf'{kind}_key +=  *"(\w+)"', table)[0] for kind in ("hash", "range")]
    assert keys == [one["AttributeName"] for one in dynamodb._KEY_SCHEMA]
    assert re.findall(r'name = "(\w+)"\n +type = "S"', table) == keys
