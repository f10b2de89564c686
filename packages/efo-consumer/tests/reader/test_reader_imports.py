"""What importing the package costs a process that needs little of it."""

from __future__ import annotations

import pytest

import penstock.efo_consumer

WRONG = "Reader2"


def test_every_name_is_found_on_first_use() -> None:
    """Each public name leads to its module, is listed by `dir`, and a wrong one is an AttributeError."""
    for name in penstock.efo_consumer.__all__:
        assert name in dir(penstock.efo_consumer)
        assert getattr(penstock.efo_consumer, name) is not None
    with pytest.raises(AttributeError, match="Reader2"):
        getattr(penstock.efo_consumer, WRONG)
