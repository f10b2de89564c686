"""Random histories of a stream, its readers and its callers: every record comes exactly once, or a loss is named.

`hatch run prove continuity --minutes 60` tries new ones for an hour, and `--self-check` breaks the rule on purpose.
"""

from __future__ import annotations

import pytest

from integration_tests.continuity_model import machine, try_machine


@pytest.mark.parametrize("profile", ["kind", "hostile"])
def test_every_record_is_delivered_once_or_a_loss_is_named(profile: str) -> None:
    """Through expiry, idle days, reshards, recreated streams and killed readers, by every way of reading."""
    tried = machine(profile)
    error = try_machine(tried, seed=1, examples=3, steps=15)
    told = "\n".join(tried.failures[0]) if tried.failures else ""
    assert error is None, f"{told}\n{type(error).__name__}: {error}"
    assert tried.counts["rows"]
