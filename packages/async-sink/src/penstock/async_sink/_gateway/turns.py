"""Whose turn it is: deficit round robin over clients. No I/O."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_QUANTUM = 1.0


class _Client(Generic[T]):
    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.weight = 1
        self.deficit = 0.0
        self.items: deque[tuple[float, T]] = deque()


class FairTurns(Generic[T]):
    """Queues of clients that are served in turn, each by its weight; an item costs as much as the caller says.

    In each round a client is served as much as its weight; what it could not use of that for an item too large, it
    keeps for its next turn. A client without items gets nothing, and saves nothing up. The items of a client keep their
    order.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        self._round: deque[_Client[T]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, client_id: str, item: T, *, cost: float, weight: int = 1) -> None:
        """Queue an item; the latest weight counts. A cost of 1 is what a weight of 1 is worth in a round."""
        client = self._clients.get(client_id)
        if client is None:
            client = self._clients[client_id] = _Client(client_id)
            self._round.append(client)
        client.weight = weight
        client.items.append((cost, item))
        self._count += 1

    def take(self) -> T:
        """The next item.

        Raises:
            IndexError: there is none.
        """
        while True:
            client = self._round[0]
            cost, item = client.items[0]
            if cost <= client.deficit:
                client.deficit -= cost
                client.items.popleft()
                self._count -= 1
                if not client.items:
                    self._round.popleft()
                    del self._clients[client.client_id]
                return item
            self._round.rotate(-1)
            client.deficit += _QUANTUM * client.weight

    def clear(self) -> Iterator[T]:
        """Take all items out, client by client."""
        clients, self._round, self._clients, self._count = self._round, deque(), {}, 0
        for client in clients:
            for _, item in client.items:
                yield item
