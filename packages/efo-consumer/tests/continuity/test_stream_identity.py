import pyarrow as pa

from penstock.efo_consumer import WIRE_SCHEMA, StreamIdentity, to_read_batch

ARN = "arn:aws:kinesis:eu-west-1:000000000001:stream/flights"


def test_a_stream_may_go_by_its_arn() -> None:
    """Requests then name it by that alone, which other accounts need."""
    assert StreamIdentity.of(ARN).request == {"StreamARN": ARN}
    assert StreamIdentity.of("flights").request == {"StreamName": "flights"}
    assert StreamIdentity("flights", ARN).request == {"StreamARN": ARN}


def test_rows_have_the_name_of_a_stream_that_goes_by_its_arn() -> None:
    """The column is the same, whichever way a stream is asked for."""
    row = {"data": b"", "partitionKey": "k", "sequenceNumber": "1"}
    records = pa.RecordBatch.from_pylist([row], schema=WIRE_SCHEMA)
    for name in (ARN, "flights"):
        assert to_read_batch(records, name, "shardId-000000000000").column("streamName").to_pylist() == ["flights"]
