"""What can be wrong with the settings of the console."""


class ConsoleOptionError(ValueError):
    """A setting is missing, contradictory or unsafe.

    `option` names the setting, `reason` says what to do.

    Cure: Correct the setting that is named, as `reason` says.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason
