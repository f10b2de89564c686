"""A server for clients of PutRecords: accepts every record, and does as little as it can.

Run as a program of its own: it prints its port and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

_RECORD = (
    b'{"SequenceNumber":"49590338271490256608559692538361571095921575989136588898","ShardId":"shardId-000000000000"}'
)
_DESCRIPTION = (
    b'{"StreamDescriptionSummary":{"StreamStatus":"ACTIVE","OpenShardCount":1,"StreamName":"s"},'
    b'"Shards":[{"ShardId":"shardId-000000000000"}],"StreamDescription":{"StreamStatus":"ACTIVE",'
    b'"Shards":[{"ShardId":"shardId-000000000000","HashKeyRange":{"StartingHashKey":"0","EndingHashKey":"1"},'
    b'"SequenceNumberRange":{"StartingSequenceNumber":"1"}}],"HasMoreShards":false}}'
)


def _answer(body: bytes) -> bytes:
    count = body.count(b'"PartitionKey"')
    if count == 0:
        return _DESCRIPTION
    return b'{"FailedRecordCount":0,"Records":[' + b",".join([_RECORD] * count) + b"]}"


class _Http(asyncio.Protocol):
    """Just enough of HTTP/1.1 for requests with a length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = bytearray()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end]).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._received) < end + 4 + length:
                if b"expect: 100-continue" in head and len(self._received) == end + 4:
                    self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
            del self._received[: end + 4 + length]
            answer = _answer(body)
            self._write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.1\r\nContent-Length: %d\r\n\r\n%b"
                % (len(answer), answer)
            )

    def _write(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.write(data)


async def main() -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Http, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
