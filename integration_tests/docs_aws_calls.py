"""The operations of AWS that the sources of a package, or of a service, can call, by the service models of botocore."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import botocore.session
from botocore import xform_name

from integration_tests.docs_pages import ROOT

# What is looked at: packages that call AWS by names of operations, and of which services.
SERVICES = {
    "registration": ("kinesis", "dynamodb"),
    "efo-consumer": ("kinesis", "dynamodb", "dynamodbstreams", "glue", "s3"),
    "async-sink": ("kinesis", "firehose", "dynamodb", "sqs"),
    "spark-plugin": ("kinesis", "glue", "s3"),
    "cli": ("kinesis",),
    "console": ("kinesis",),
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
    """What a module calls, or names at the head of a call, or by an operation's own name; and functions of its own.

    An attribute alone is not a call: a URL has a `query`, too. Excluded names are not calls either.
    """
    words: set[str] = set()
    own: set[str] = set()
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "skipped":
            left_out.update(node.args)
        elif isinstance(node, ast.Call):
            for one in (node.func, *node.args[:2]):
                if isinstance(one, ast.Attribute):
                    words.add(one.attr)
                elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                    words.add(one.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            # Elsewhere a word such as "query" may mean anything.
            words |= {node.value} if node.value[:1].isupper() else set()
    return words, own


def called_by(package: str) -> set[str]:
    """The actions that a package or service needs: the operations that its modules name, in either spelling.

    Helpers of tests, and names of options and settings, do not count; a method of the package with the name of a
    client's method does not count.
    """
    (folder,) = ROOT.glob(f"[ps]*/{package}/src")
    files = [file for file in folder.rglob("*.py") if not {"testing", "configs"} & set(file.stem.split("_"))]
    return called_in([file for file in files if "_options" not in file.parts], SERVICES[package])


def called_in(files: Iterable[Path], services: Iterable[str]) -> set[str]:
    """The actions that modules need of some services of AWS."""
    sources = [file.read_text() for file in files]
    parsed = [(source, *words_of(ast.parse(source))) for source in sources]
    # A class of penstock-aws calls for the package that derives from it, or makes one.
    shared = ast.parse((ROOT / "packages/aws/src/penstock/aws/_conditional.py").read_text())
    stores = [
        node for node in shared.body if isinstance(node, ast.ClassDef) and node.name in ("S3Store", "DynamoDbTable")
    ]
    parsed += [(one.name, words_of(one)[0], set()) for one in stores if any(one.name in source for source in sources)]
    own = {name for _, _, names in parsed for name in names}
    called = set()
    for source, words, _ in parsed:
        for service in services:
            if service in ("dynamodb", "dynamodbstreams", "glue") and service not in source.lower():
                continue
            # It names operations of Kinesis to answer them, and calls none.
            if service == "kinesis" and "dynamodbstreams" in source.lower():
                continue
            for name in operations(service):
                if name in words or ((method := xform_name(name)) in words and method not in own):
                    called.add(f"{service}:{name}")
    return {ACTIONS.get(one, one) for one in called}


# The services of Penstock that call AWS, and which of its services they call.
SERVING = {
    "consumer_registry": ("kinesis", "dynamodb"),
    "shard_reader": ("kinesis",),
    "sink_gateway": ("kinesis", "firehose", "dynamodb", "sqs"),
}


def called_while_serving(service: str) -> set[str]:
    """The actions that a service needs: the operations that the modules name which its server imports, however late.

    A package that imports lazily counts as the modules whose names are used, not as a whole. The commands of the
    service that are no server, and what a package does only for programs without the service, are left out.
    """
    found: set[Path] = set()
    waiting = [_file_of(f"penstock.services.{service}._serve")]
    while waiting:
        file = waiting.pop()
        if file is None or file in found or {"aws", "proto"} & set(file.relative_to(ROOT).parts[:2]):
            continue
        found.add(file)
        waiting += [_file_of(module) for module in _imported(file)]
    return called_in(sorted(found), SERVING[service])


def _file_of(module: str) -> Path | None:
    path = module.replace(".", "/")
    return next((file for end in (".py", "/__init__.py") for file in ROOT.glob(f"[ps]*/*/src/{path}{end}")), None)


def _imported(file: Path) -> Iterator[str]:
    """Yield the modules of the repository that a module imports at run time, also by name from lazy packages."""
    waiting: list[ast.AST] = [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock"):
            assert node.module is not None
            for alias in node.names:
                yield from (f"{node.module}.{alias.name}", _home_of(node.module, alias.name))
        # What only a type checker imports is not imported to run.
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _home_of(module: str, name: str) -> str:
    """The module that a name of a lazy package comes from; of another module, the module itself."""
    for stub in ROOT.glob(f"[ps]*/*/src/{module.replace('.', '/')}/__init__.pyi"):
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
                return f"{module}.{node.module}"
    return module
