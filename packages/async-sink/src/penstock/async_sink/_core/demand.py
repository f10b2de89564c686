"""Who wants batches to leave that are not full."""


class Demand:
    """Callers who wait for room, the buffer's timer and flushes ask for batches; a flush of what is in flight asks for
    none at all."""

    def __init__(self) -> None:
        self.entries = 0
        """Entries that are to leave, full batches or not."""
        self.draining = 0
        """Flushes that empty the buffer."""
        self.suspended = 0
        """Flushes that let nothing leave."""
        self._reason = ""

    def one_batch(self) -> None:
        """Let a batch leave though it is not full: somebody waits for room."""
        if self.entries == 0:
            self.entries, self._reason = 1, "full"

    def all_of(self, entries: int) -> None:
        """Let that many entries leave: their time is up."""
        self.entries, self._reason = entries, "time"

    def follow(self, entries: int) -> None:
        """These were due before, and came to the head as those of their keys before them are settled."""
        if entries and self.entries == 0:
            self._reason = "order"
        self.entries += entries

    def stands_behind(self, entries: int) -> None:
        """These came to the head of the buffer; they leave by themselves and must not use up what was demanded."""
        if self.entries:
            self.entries += entries

    def met(self, entries: int) -> None:
        """That many have left the buffer's queue."""
        self.entries = max(0, self.entries - entries)

    @property
    def reason(self) -> str | None:
        """Why a batch leaves that is not full; None: it does not."""
        if self.entries > 0:
            return self._reason
        return "flush" if self.draining > 0 else None
