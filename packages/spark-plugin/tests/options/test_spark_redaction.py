import re

import pytest
from option_texts import names

from penstock.spark_plugin import recommended_settings
from penstock.spark_plugin._options.table import OPTIONS

TEXTS = re.compile(recommended_settings()["spark.sql.redaction.string.regex"])
NAMES = re.compile(recommended_settings()["spark.sql.redaction.options.regex"])
_SPARK_OWN = re.compile("(?i)secret|password|token|access[.]?key")
"""The default of `spark.redaction.regex`, which Spark applies to the names of options beside its own."""

SECRETS = sorted({name for spec in OPTIONS if spec.secret for name in names(spec)})
FORMS = [
    'options {{ key: "{name}" value: "{value}" }}',
    'options {{\n  key: "{name}"\n  value: "{value}"\n}}',
    r"create view v using kinesis options ({name} \'{value}\')",
    "create view v using kinesis options (`{name}` = '{value}')",
    'create view v using kinesis options ("{name}" "{value}")',
    "create view v using kinesis options ('{name}'='{value}')",
]
"""How Spark Connect writes a request, and how SQL has options."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_is_left_in_a_text(name: str, form: str) -> None:
    """The value of every secret option, under each of its names, is taken out of what Spark shows; the rest stays."""
    for value in ("wJalrXUtnFEMI/K7MDENG+bPxRfiCY==", "with spaces, and = signs"):
        shown = TEXTS.sub("*", form.format(name=name, value=value) + ' streamName "flights"')
        assert value not in shown
        assert shown.endswith('streamName "flights"')


def test_no_password_of_a_url_is_left_in_a_text() -> None:
    """Such a URL is refused, but the request that has it is shown before."""
    shown = TEXTS.sub("*", 'key: "endpointUrl" value: "https://user:hush@127.0.0.1:4567/" at 10:00 by a@b')
    assert shown == 'key: "endpointUrl" value: "https*127.0.0.1:4567/" at 10:00 by a@b'


@pytest.mark.parametrize("name", SECRETS)
def test_every_secret_option_is_redacted_in_plans(name: str) -> None:
    """By the names that Spark knows, or by the setting that `configure` makes."""
    assert _SPARK_OWN.search(name) or NAMES.search(name)
