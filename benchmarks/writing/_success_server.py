"""A server for clients of PutRecords: accepts every record, and does as little as it can, in JSON and in CBOR.

Run as a program of its own: it prints its port and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import functools
import sys

_LARGEST_REQUEST = 4 << 20
_RECORD = (
    b'{"SequenceNumber":"49590338271490256608559692538361571095921575989136588898","ShardId":"shardId-000000000000"}'
)
_DESCRIPTION = (
    b'{"StreamDescriptionSummary":{"StreamStatus":"ACTIVE","OpenShardCount":1,"StreamName":"s",'
    b'"StreamARN":"arn:aws:kinesis:us-east-1:123456789012:stream/s"},'
    b'"Shards":[{"ShardId":"shardId-000000000000"}],"StreamDescription":{"StreamStatus":"ACTIVE",'
    b'"Shards":[{"ShardId":"shardId-000000000000","HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"1"},'
    b'"SequenceNumberRange":{"StartingSequenceNumber":"1"}}],"HasMoreShards":false}}'
)


# A map of two texts.
_CBOR_RECORD = b"\xa2\x6eSequenceNumber\x78\x384959033827149025660855969253836157109592157598913658889\x38\x67ShardId"
_CBOR_RECORD += b"\x74shardId-000000000000"


@functools.cache
def _accepted(count: int, *, in_cbor: bool) -> bytes:
    """The answer that so many records were accepted, with its head."""
    if in_cbor:
        head = b"\xa2\x71FailedRecordCount\x00\x67Records\x99" + count.to_bytes(2, "big")
        return _with_head(head + _CBOR_RECORD * count)
    return _with_head(b'{"FailedRecordCount":0,"Records":[' + b",".join([_RECORD] * count) + b"]}")


def _with_head(answer: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n"
    return head % len(answer) + answer


def _answer(received: bytearray, start: int, end: int) -> bytes:
    """To a body that lies there."""
    in_cbor = received[start] == 0xA2 if end > start else False
    key = b"\x6cPartitionKey" if in_cbor else b'"PartitionKey"'
    count = received.count(key, start, end)
    return _accepted(count, in_cbor=in_cbor) if count or in_cbor else _with_head(_DESCRIPTION)


class _Http(asyncio.BufferedProtocol):
    """Just enough of HTTP/1.1 for requests with a length, each of which is answered before the next one comes.

    Bodies stay where the kernel put them: what this costs is taken from the clients that are measured by the clock.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = bytearray(_LARGEST_REQUEST)
        self._view = memoryview(self._received)
        self._begin()

    def _begin(self) -> None:
        self._end = 0
        self._body = self._length = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        if not self._body and not self._read_head():
            return
        if self._end >= self._body + self._length:
            self._transport.write(_answer(self._received, self._body, self._body + self._length))
            self._begin()

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n", 0, self._end)
        if end < 0:
            return False
        head = bytes(self._view[:end]).lower()
        self._body = end + 4
        self._length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if b"expect: 100-continue" in head and self._end == self._body:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True


async def main() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Http, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
