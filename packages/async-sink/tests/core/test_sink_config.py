from datetime import timedelta
from typing import Any

import pytest

from penstock.async_sink import AsyncSinkConfig
from penstock.async_sink.errors import SinkOptionError


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("max_batch_size", {"max_batch_size": 0}),
        ("max_in_flight_requests", {"max_in_flight_requests": 0}),
        ("max_buffered_requests", {"max_buffered_requests": -1}),
        ("max_buffered_requests", {"max_batch_size": 10, "max_buffered_requests": 10}),
        ("max_buffered_bytes", {"max_buffered_bytes": 0}),
        ("max_buffered_bytes", {"max_batch_size_in_bytes": 2**20, "max_buffered_bytes": 2**20 - 1}),
        ("max_batch_size_in_bytes", {"max_batch_size_in_bytes": 0}),
        ("max_batch_size_in_bytes", {"max_batch_size_in_bytes": 99, "max_record_size_in_bytes": 100}),
        ("max_record_size_in_bytes", {"max_record_size_in_bytes": 0}),
        ("max_time_in_buffer", {"max_time_in_buffer": timedelta(0)}),
        ("request_timeout", {"request_timeout": timedelta(seconds=-1)}),
        ("max_attempts", {"max_attempts": 0}),
        ("retry_backoff_base", {"retry_backoff_base": timedelta(seconds=-1)}),
        (
            "retry_backoff_maximum",
            {"retry_backoff_base": timedelta(seconds=2), "retry_backoff_maximum": timedelta(seconds=1)},
        ),
    ],
)
def test_a_wrong_limit_is_an_error_that_names_it(option: str, options: dict[str, Any]) -> None:
    """Each limit is checked on construction, alone and against the others."""
    with pytest.raises(SinkOptionError) as caught:
        AsyncSinkConfig(**options)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"request_timeout": 2}, "request_timeout: 2 must be a timedelta, such as timedelta(seconds=2)"),
        ({"max_time_in_buffer": "5s"}, "max_time_in_buffer: '5s' must be a timedelta, such as timedelta(seconds=2)"),
        ({"retry_backoff_base": 1}, "retry_backoff_base: 1 must be a timedelta, such as timedelta(seconds=2)"),
        (
            {"retry_backoff_maximum": 1.5},
            "retry_backoff_maximum: 1.5 must be a timedelta, such as timedelta(seconds=2)",
        ),
        ({"time_to_live": 9}, "time_to_live: 9 must be a timedelta, such as timedelta(seconds=2)"),
        ({"max_block_time": 9}, "max_block_time: 9 must be a timedelta, such as timedelta(seconds=2)"),
        ({"max_batch_size": 1.5}, "max_batch_size: 1.5 must be a whole number"),
    ],
)
def test_a_value_of_another_type_says_which_is_meant(options: dict[str, Any], message: str) -> None:
    """Not a bare TypeError of a comparison."""
    with pytest.raises(SinkOptionError) as caught:
        AsyncSinkConfig(**options)
    assert str(caught.value) == message
