"""An embedded Amazon Kinesis with the enhanced fan-out life cycle, for tests."""

from ._clock import Clock, SystemClock, Timer
from ._config import EmulatorConfig
from ._kinesis import Kinesis
from ._server import EmulatorServer
from .errors import EmulatorConfigError, EmulatorError, EmulatorStartError, KinesisError

__all__ = [
    "Clock",
    "EmulatorConfig",
    "EmulatorConfigError",
    "EmulatorError",
    "EmulatorServer",
    "EmulatorStartError",
    "Kinesis",
    "KinesisError",
    "SystemClock",
    "Timer",
]
