"""Disjoint sets of numbers, for chains and regions."""


class UnionFind:
    """Disjoint sets over `0 .. size - 1`, each represented by its smallest number."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, item: int) -> int:
        """The representative of the set of `item`."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def union(self, first: int, second: int) -> None:
        """Make one set of the two that hold `first` and `second`."""
        low, high = sorted((self.find(first), self.find(second)))
        self._parent[high] = low
