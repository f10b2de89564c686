"""An embedded Amazon Kinesis with the enhanced fan-out life cycle, for tests."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.emulator._behaviour import Behaviour
    from penstock.emulator._clock import Clock, SystemClock, Timer
    from penstock.emulator._config import EmulatorConfig
    from penstock.emulator._faults import Fault, FaultPlan
    from penstock.emulator._server import EmulatorServer, KinesisEmulator
    from penstock.emulator._state.kinesis import Kinesis
    from penstock.emulator.errors import (
        CompanionError,
        EmulatorConfigError,
        EmulatorError,
        EmulatorStartError,
        JournalError,
        KinesisError,
    )

__all__ = [
    "Behaviour",
    "Clock",
    "CompanionError",
    "EmulatorConfig",
    "EmulatorConfigError",
    "EmulatorError",
    "EmulatorServer",
    "EmulatorStartError",
    "Fault",
    "FaultPlan",
    "JournalError",
    "Kinesis",
    "KinesisEmulator",
    "KinesisError",
    "SystemClock",
    "Timer",
]

_MODULES = {
    "_behaviour": ("Behaviour",),
    "_clock": ("Clock", "SystemClock", "Timer"),
    "_config": ("EmulatorConfig",),
    "_faults": ("Fault", "FaultPlan"),
    "_state.kinesis": ("Kinesis",),
    "_server": ("EmulatorServer", "KinesisEmulator"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # On first use: the pytest plugin is imported in every test run, of people who may not use the emulator in it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
