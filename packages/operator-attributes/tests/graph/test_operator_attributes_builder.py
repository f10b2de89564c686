import logging

import pytest

from penstock.operator_attributes import (
    OperatorAttributes,
    OperatorAttributesBuilder,
)


def test_both_attributes_are_false_by_default() -> None:
    """An operator that says nothing about itself is not a full-dam operator and has no sorter."""
    assert OperatorAttributesBuilder().build() == OperatorAttributes(
        output_only_after_end_of_stream=False, internal_sorter_supported=False
    )


def test_setters_can_be_chained() -> None:
    """Each setter gives the builder back, and sets its own attribute."""
    attributes = (
        OperatorAttributesBuilder()
        .set_output_only_after_end_of_stream(True)
        .set_internal_sorter_supported(True)
        .build()
    )
    assert attributes.output_only_after_end_of_stream
    assert attributes.internal_sorter_supported


def test_an_attribute_that_is_not_set_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """Only what was not set explicitly is logged, and at DEBUG."""
    with caplog.at_level(logging.DEBUG, logger="penstock.operator_attributes"):
        OperatorAttributesBuilder().set_output_only_after_end_of_stream(False).build()
    assert [record.levelno for record in caplog.records] == [logging.DEBUG]
    assert "internal_sorter_supported" in caplog.text
    assert "output_only_after_end_of_stream" not in caplog.text


def test_attributes_that_are_all_set_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An operator that says everything leaves no trace in the log, be the values true or false."""
    with caplog.at_level(logging.DEBUG, logger="penstock.operator_attributes"):
        OperatorAttributesBuilder().set_output_only_after_end_of_stream(False).set_internal_sorter_supported(
            True
        ).build()
    assert not caplog.records
