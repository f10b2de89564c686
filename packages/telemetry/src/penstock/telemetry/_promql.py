"""The metrics that a PromQL expression names, with the labels that it matches or groups by."""

import re

_TOKENS = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<duration>\[[^\]]*\])
    |(?P<number>0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:ms|[smhdwy])?)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^<>=(){},@])""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_GROUPS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


def parse_promql(expression: str) -> tuple[set[str], set[str]]:
    """Metrics, and labels in matchers and groups.

    Raises:
        ValueError: something that is no PromQL, or brackets that do not match.
    """
    tokens = []
    place = 0
    while place < len(expression):
        found = _TOKENS.match(expression, place)
        if found is None:
            raise ValueError(f"not PromQL at {expression[place : place + 20]!r}")
        if found.lastgroup != "space":
            tokens.append((found.lastgroup, found.group()))
        place = found.end()
    metrics: set[str] = set()
    labels: set[str] = set()
    closing: list[str] = []
    grouping = False
    for number, (kind, text) in enumerate(tokens):
        following = tokens[number + 1][1] if number + 1 < len(tokens) else ""
        if text in "({":
            is_labels = text == "{" or (number > 0 and tokens[number - 1][1] in _GROUPS)
            closing.append("}" if text == "{" else ")")
            grouping = is_labels or grouping
        elif text in ")}":
            if not closing or closing.pop() != text:
                raise ValueError(f"{text!r} without its opening in {expression!r}")
            grouping = False
        elif kind == "name" and grouping:
            labels.add(text)
        elif kind == "name" and text not in _WORDS | _GROUPS and following not in ("(", "by", "without"):
            # A name before a bracket, or before its groups, is a function or an aggregation.
            metrics.add(text)
    if closing:
        raise ValueError(f"{closing[-1]!r} is missing in {expression!r}")
    return metrics, labels
