"""What can be wrong with the settings of telemetry."""


class TelemetryOptionError(Exception):
    """A variable cannot be used as it is.

    Cure: Set or unset the variable as `reason` says.

    Attributes:
        option: the variable.
        reason: what is wrong, and what to do.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason
