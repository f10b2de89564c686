"""The operations of AWS that the sources of a package can call, by the service models of botocore."""

import ast
from functools import cache
from pathlib import Path

import botocore.session
from botocore import xform_name

# What is looked at: packages that call AWS by names of operations, and of which services.
SERVICES = {
    "registration": ("kinesis", "dynamodb"),
    "efo-consumer": ("kinesis", "dynamodb", "dynamodbstreams", "glue"),
    "async-sink": ("kinesis", "firehose", "dynamodb", "sqs"),
    "spark-plugin": ("kinesis", "glue", "s3"),
}
# An action of IAM that has another name than the operation.
ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    **{
        f"dynamodbstreams:{name}": f"dynamodb:{name}"
        for name in ("DescribeStream", "GetShardIterator", "GetRecords", "ListStreams")
    },
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
    "s3:DeleteObjects": "s3:DeleteObject",
}


@cache
def operations(service: str) -> frozenset[str]:
    """Names of a service's operations, as the API reference has them."""
    return frozenset(botocore.session.get_session().get_service_model(service).operation_names)


def words_of(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Strings and attributes that a module names, and functions that it defines."""
    words: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.add(node.value)
        elif isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
    return words, own


def called_by(package: Path) -> set[str]:
    """The actions that a package needs: the operations that its modules name, in either spelling.

    Not helpers of tests, nor names of options and settings; a method of the package's own that is called like a
    client's is none.
    """
    files = [file for file in (package / "src").rglob("*.py") if not {"testing", "configs"} & set(file.stem.split("_"))]
    sources = [file.read_text() for file in files if "_options" not in file.parts]
    parsed = [(source, *words_of(ast.parse(source))) for source in sources]
    own = {name for _, _, names in parsed for name in names}
    called = set()
    for source, words, _ in parsed:
        for service in SERVICES[package.name]:
            if service in ("dynamodb", "dynamodbstreams", "glue") and service not in source.lower():
                continue
            # It names operations of Kinesis to answer them, and calls none.
            if service == "kinesis" and "dynamodbstreams" in source.lower():
                continue
            for name in operations(service):
                if name in words or ((method := xform_name(name)) in words and method not in own):
                    called.add(f"{service}:{name}")
    return {ACTIONS.get(one, one) for one in called}
