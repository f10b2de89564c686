"""Rows as lines of CSV (RFC 4180) without a header, whole columns at a time."""

import re
from typing import Any

from penstock.spark_plugin._writing._value_text import compute, join, plain_text


def csv_rows(batch: Any, delimiter: str) -> Any:
    """A column of strings: one line per row, without its end.

    A null is nothing at all, an empty text is `""`. A text with the delimiter, a quote or a line break stands in
    quotes, its quotes doubled.
    """
    special = f'[{re.escape(delimiter)}"\\r\\n]|^$|^\\s|\\s$'
    fields = []
    for column in batch.columns:
        texts = plain_text(column)
        quoted = join(['"', compute.replace_substring(texts, '"', '""'), '"'])
        texts = compute.if_else(compute.match_substring_regex(texts, special), quoted, texts)
        fields.append(compute.fill_null(texts, ""))
    return join(fields, delimiter)
