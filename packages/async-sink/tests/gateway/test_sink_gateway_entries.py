"""What a gateway makes of a client's batch."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.async_sink._gateway.kinds import KINDS
from penstock.async_sink._gateway.session import BatchTracker
from penstock.async_sink.errors import RecordError
from penstock.proto.sink_gateway.v1 import sink_gateway_pb2 as pb

KEYS = st.one_of(st.text("ab", min_size=1, max_size=3), st.just("ключ"), st.sampled_from(["", "k" * 256, "k" * 257]))
HASH_KEYS = st.one_of(st.just(""), st.sampled_from(["0", str(2**128 - 1), str(2**128), "x"]))
ENTRIES = st.builds(pb.Entry, data=st.binary(max_size=4), partition_key=KEYS, explicit_hash_key=HASH_KEYS)


@given(st.lists(ENTRIES, min_size=1, max_size=5))
def test_entries_that_are_read_together_are_those_that_are_read_one_by_one(sent: list[pb.Entry]) -> None:
    """The same entries and bytes, or the same error."""

    def read(kind: str, *, together: bool) -> object:
        one = KINDS[kind] if together else replace(KINDS[kind], read_all=lambda _: None)
        try:
            return one.from_messages(sent)
        except RecordError as error:
            return str(error)

    assert read("kinesis", together=True) == read("kinesis", together=False)


def test_neighbours_count_as_each_of_them_would() -> None:
    """A batch is settled when all of its entries are; its retries are the sum of theirs."""
    settled: list[BatchTracker] = []
    tracker = BatchTracker(7, 5, 100, settled.append, lambda _: None)
    tracker.acknowledged_many(0, 3, 2)
    tracker.acknowledged(3, 1)
    assert not settled
    tracker.acknowledged_many(4, 1, 3)
    assert settled == [tracker]
    assert tracker.answer().acknowledgement == pb.Acknowledgement(batch_id=7, retries=5)
