# Each name is imported where it is first used: `lazy_loader` reads this file for where it stands.
from ._clock import (
    Clock,
    SystemClock,
    Timer,
)
from ._config import Behaviour, EmulatorConfig
from ._faults import (
    Fault,
    FaultPlan,
)
from ._server import (
    EmulatorServer,
    KinesisEmulator,
)
from ._state.kinesis import Kinesis
from .errors import (
    EmulatorConfigError,
    EmulatorError,
    EmulatorStartError,
    KinesisError,
)

__all__ = [
    "Behaviour",
    "Clock",
    "EmulatorConfig",
    "EmulatorConfigError",
    "EmulatorError",
    "EmulatorServer",
    "EmulatorStartError",
    "Fault",
    "FaultPlan",
    "Kinesis",
    "KinesisEmulator",
    "KinesisError",
    "SystemClock",
    "Timer",
]
