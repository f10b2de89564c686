"""The page of all errors with their causes and remedies."""

import re
from itertools import groupby

from reference_text import cell

from penstock.cli._errors import KnownError, known_errors
from penstock.spark_plugin._options.table import OPTIONS

_OPTIONS = frozenset(spec.name for spec in OPTIONS)
_CODE = re.compile(r"`(\w+)`")


def page() -> str:
    """The page."""
    parts = [
        "# Errors\n",
        "Each error has its facts as fields, and its message says what to do. Spark shows an error as the last line of "
        "a traceback. Indented errors are special cases of the error above. A name in capitals is a code: the message "
        "begins with it, and `error.code` contains it. `penstock errors DataLossError` and `penstock errors "
        "CONSUMER_LIMIT` print the same for one error.\n",
    ]
    for module, errors in groupby(known_errors(), key=lambda one: one.module):
        parts += [f"## {module}\n", "| error | when | what to do |", "| --- | --- | --- |", *map(_row, errors), ""]
    return "\n".join(parts)


def _row(error: KnownError) -> str:
    name = "&nbsp;&nbsp;" * error.depth + f"<span id='{error.full_name}'></span>`{error.name}`"
    return f"| {name} | {cell(error.when)} | {_CODE.sub(_with_link, cell(error.cure))} |"


def _with_link(code: re.Match[str]) -> str:
    return f"[{code[0]}](options.md#option-{code[1]})" if code[1] in _OPTIONS else code[0]
