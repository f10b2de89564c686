"""The books of the flow-control window."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.efo_consumer._wire.http2_connections import ReceiveWindow

_WINDOW = 1000


class Sender:
    """Sends frames as a server does: only within the credit, in chunks."""

    def __init__(self, frames: list[int], chunk: int) -> None:
        self.left = list(frames)
        self.chunk = chunk
        self.credit = _WINDOW
        self.sent_of_frame = 0
        self.window = ReceiveWindow(_WINDOW)
        self.waiting: list[int] = []
        self.largest_debt = 0

    def send(self) -> bool:
        """Send one chunk; False if there is nothing to send, or no credit."""
        if not self.left or not self.credit:
            return False
        size = min(self.chunk, self.credit, sum(self.left) - self.sent_of_frame)
        self.credit -= size
        self.sent_of_frame += size
        completed = []
        while self.left and self.sent_of_frame >= self.left[0]:
            completed.append(self.left[0])
            self.sent_of_frame -= self.left.pop(0)
        credit, costs = self.window.received(size, completed, self.sent_of_frame)
        self.waiting += costs
        self.credit += credit
        self.largest_debt = max(self.largest_debt, self.window.owed_bytes)
        return True

    def take(self) -> None:
        self.credit += self.window.taken(self.waiting.pop(0), self.sent_of_frame)


_frames = st.lists(st.integers(min_value=16, max_value=3500), min_size=1, max_size=20)


@given(_frames, st.integers(min_value=1, max_value=700), st.data())
def test_everything_arrives_and_everything_is_credited(frames: list[int], chunk: int, data: st.DataObject) -> None:
    """Frames of any size come through, even larger than the window, and the whole window is there again at the end."""
    sender = Sender(frames, chunk)
    taken = 0
    while taken < len(frames):
        if bool(sender.waiting) and data.draw(st.booleans()):
            sender.take()
            taken += 1
        elif not sender.send():
            assert sender.waiting, "the sender has no credit and the consumer has nothing to take"
            sender.take()
            taken += 1
    assert sender.credit == _WINDOW
    assert sender.window.owed_bytes == 0
    assert sender.largest_debt <= _WINDOW


@given(st.lists(st.integers(min_value=16, max_value=500), min_size=20, max_size=40))
def test_a_consumer_that_takes_nothing_stops_the_sender(frames: list[int]) -> None:
    """Without a consumer no more is sent than the window."""
    sender = Sender(frames, 100)
    while sender.send():
        pass
    assert sum(frames) - sum(sender.left) + sender.sent_of_frame <= _WINDOW
