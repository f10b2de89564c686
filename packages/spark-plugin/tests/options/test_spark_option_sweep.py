"""Nasty inputs, one by one: what each is answered with, word by word."""

import json
from pathlib import Path

import pytest

from penstock.spark_plugin import KinesisOptions
from penstock.spark_plugin._options.spec import Use
from penstock.spark_plugin._options.use import check_use
from penstock.spark_plugin.errors import OptionError

_USES = {"read": Use.READ, "readStream": Use.READ_STREAM, "write": Use.WRITE, "load": Use.ANY_READ}


def _use(options: dict[str, str], use: Use) -> None:
    KinesisOptions.parse(options, environ={}, stream_required=use is not Use.WRITE)
    check_use(options, use)


def _cases() -> list[tuple[str, str]]:
    """Pairs of lines: where the options are given, and which; indented, the error."""
    lines = (Path(__file__).parents[1] / "data" / "nasty_options.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    return list(zip(lines[::2], lines[1::2], strict=True))


@pytest.mark.parametrize(("given", "answer"), _cases())
def test_a_nasty_input_is_answered_with_name_value_and_cure(given: str, answer: str) -> None:
    """In lower case, as Spark hands options over; the answer has the name as it is documented."""
    use, _, text = given.partition(" ")
    options = {name.lower(): value for name, value in json.loads(text).items()}
    with pytest.raises(OptionError) as caught:
        _use(options, _USES[use])
    assert f"    {type(caught.value).__name__}: {caught.value}" == answer


def test_no_input_is_listed_twice() -> None:
    """More than two hundred, each of its own."""
    given = [one for one, _ in _cases()]
    assert len(given) == len(set(given)) > 200
