"""Errors of the embedded Kinesis.

EmulatorError
├── EmulatorConfigError    an option of EmulatorConfig is out of range, or its service cannot start (field: option)
├── EmulatorStartError     the emulator's process did not come up (fields: exit_code, output)
└── KinesisError           an answer that the API defines (fields: code, message, status)
"""

from __future__ import annotations


class EmulatorError(Exception):
    """Base of every error that this package raises on its own account."""


class EmulatorConfigError(EmulatorError, ValueError):
    """An option of `EmulatorConfig` has a value that cannot work.

    Cure: Correct the option that is named.
    """

    def __init__(self, *, option: str, reason: str) -> None:
        super().__init__(f"{option}: {reason}")
        self.option = option
        self.reason = reason


class EmulatorStartError(EmulatorError):
    """A child process of the emulator ended, or stayed silent, before it was ready.

    Cure: Read `output`: a port that is taken, or a missing package, is the usual cause.
    """

    def __init__(self, *, exit_code: int | None, output: str) -> None:
        super().__init__(f"the emulator did not become ready (exit code {exit_code}): {output.strip()}")
        self.exit_code = exit_code
        self.output = output


class KinesisError(EmulatorError):
    """An error answer of the Kinesis API.

    `code` is the `__type` of the answer (for example ``ResourceInUseException``), `message` its text, and
    `status` its HTTP status: 400 for everything that the caller can change, 500 for internal failures.

    Cure: As with AWS: `code` says what to change in the request.
    """

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def invalid_argument(message: str) -> KinesisError:
    """Build an InvalidArgumentException."""
    return KinesisError("InvalidArgumentException", message)


def not_found(message: str) -> KinesisError:
    """Build a ResourceNotFoundException."""
    return KinesisError("ResourceNotFoundException", message)


def in_use(message: str) -> KinesisError:
    """Build a ResourceInUseException."""
    return KinesisError("ResourceInUseException", message)


def limit_exceeded(message: str) -> KinesisError:
    """Build a LimitExceededException."""
    return KinesisError("LimitExceededException", message)


def throughput_exceeded(message: str) -> KinesisError:
    """Build a ProvisionedThroughputExceededException."""
    return KinesisError("ProvisionedThroughputExceededException", message)
