"""The fields of `KinesisOptions` by the names of the options."""

import re


def field_name(option: str) -> str:
    """The field of `KinesisOptions` that holds an option."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", option).lower()
