"""What clients that are gone had sent, and nobody's credits count any more."""

from penstock.async_sink._core.signal import Signal
from penstock.async_sink._gateway.credits import CreditWindow


class Orphanage:
    """Accepted entries of ended streams that are not written yet.

    Without it, a client that sends all that it may, breaks off and comes again would fill the gateway: new streams get
    no credits while as much as a window is here.
    """

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self._abandoned = False
        self._changed = Signal()

    def taken(self, entries: int, size_in_bytes: int) -> None:
        """Their stream has ended."""
        self.entries += entries
        self.bytes += size_in_bytes

    def settled(self, entries: int, size_in_bytes: int) -> None:
        """They have their word."""
        self.entries -= entries
        self.bytes -= size_in_bytes
        self._changed.notify()

    def abandon(self) -> None:
        """The destination has failed: nothing is going to be settled here. Who waits is let through to its error."""
        self._abandoned = True
        self._changed.notify()

    async def wait_for_room(self, window: CreditWindow) -> None:
        """Wait until less than a window of them is left."""
        while not self._abandoned and (self.entries >= window.entries or self.bytes >= window.bytes):
            await self._changed.wait()
