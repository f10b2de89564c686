"""Errors of the console.

ConsoleError
├── ConsoleOptionError   a setting is missing, contradictory or unsafe
├── NotConfiguredError   an action is for a service of which the console has no endpoint
└── NotResumableError    a stage cannot be resumed as it stands
"""


class ConsoleError(Exception):
    """Base of all errors of this package."""


class ConsoleOptionError(ConsoleError, ValueError):
    """A setting is missing, contradictory or unsafe.

    `option` names the setting, `reason` says what to do.

    Cure: Correct the setting that is named, as `reason` says.
    """

    def __init__(self, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class NotConfiguredError(ConsoleError):
    """An action is for a `service` of which the console has no endpoint.

    Cure: Start the console with that service's endpoint.
    """

    def __init__(self, service: str) -> None:
        super().__init__(f"no endpoint of the {service} was given")
        self.service = service


class NotResumableError(ConsoleError):
    """Stage `stage_id` of job `job_id` cannot be resumed as it stands; `reason` says why, and what to do instead.

    Cure: Do what `reason` says.
    """

    def __init__(self, job_id: str, stage_id: str, reason: str) -> None:
        super().__init__(reason)
        self.job_id = job_id
        self.stage_id = stage_id
        self.reason = reason
