"""Turns between the clients of a gateway."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink._gateway.feeder import FairTurns


def drain(turns: FairTurns[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    return [turns.take() for _ in range(count)]


def test_clients_take_turns_by_their_weights() -> None:
    """However much a client queued first, the others get their share from the start."""
    turns: FairTurns[tuple[str, int]] = FairTurns()
    for number in range(1_000):
        turns.add("greedy", ("greedy", number), cost=1.0)
    for number in range(300):
        turns.add("modest", ("modest", number), cost=1.0)
        turns.add("heavy", ("heavy", number), cost=1.0, weight=3)
    served = [client for client, _ in drain(turns, 250)]
    assert abs(served.count("greedy") - 50) <= 1
    assert abs(served.count("modest") - 50) <= 1
    assert abs(served.count("heavy") - 150) <= 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.001, 5.0), st.integers(1, 16)), max_size=60))
def test_everything_is_served_once_and_a_clients_items_in_order(items: list[tuple[str, float, int]]) -> None:
    """Whatever the costs and the weights are."""
    turns: FairTurns[tuple[str, int]] = FairTurns()
    for number, (client, cost, weight) in enumerate(items):
        turns.add(client, (client, number), cost=cost, weight=weight)
    assert len(turns) == len(items)
    served = drain(turns, len(items))
    assert len(turns) == 0
    for client in "abc":
        expected = [number for number, item in enumerate(items) if item[0] == client]
        assert [number for name, number in served if name == client] == expected
