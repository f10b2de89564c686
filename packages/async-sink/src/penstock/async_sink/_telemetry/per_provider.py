"""What is made once for a meter provider: the API keeps each meter and instrument that it made without one for ever."""

import weakref
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from opentelemetry import metrics

T = TypeVar("T")

SCOPE: Final = "penstock.async_sink"


class PerProvider(Generic[T]):
    """One object of a kind for each meter provider, which it does not outlive; made of the provider's meter."""

    def __init__(self, make: Callable[[metrics.Meter], T]) -> None:
        self._make = make
        # Made now: writers of several threads come at the same time.
        self._of_application = make(metrics.get_meter(SCOPE))
        self._of_others: weakref.WeakKeyDictionary[metrics.MeterProvider, T] = weakref.WeakKeyDictionary()

    def of(self, provider: metrics.MeterProvider | None) -> T:
        """That of a provider; None: of the application's, set before or after."""
        if provider is None:
            return self._of_application
        found = self._of_others.get(provider)
        if found is None:
            found = self._of_others[provider] = self._make(metrics.get_meter(SCOPE, meter_provider=provider))
        return found
