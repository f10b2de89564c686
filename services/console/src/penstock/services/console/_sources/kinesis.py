"""Shards of streams, as Kinesis lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from penstock.aws import AwsError, AwsOptions, AwsSession, JsonClient
from penstock.efo_consumer import EfoConsumerError, Shard, StreamIdentity, list_shards
from penstock.services.console._values import Kind

_AT_ONCE = 4
_MOST_STREAMS = 200


class KinesisSource:
    """Lists the shards of the streams that are known by then.

    Args:
        options: how to reach AWS.
        streams: by name, the name or the ARN that they go by.
        lists_all: whether all streams of the account and region are listed too, by ListStreams.
    """

    kind = Kind.KINESIS

    def __init__(
        self, options: AwsOptions, streams: Callable[[], Mapping[str, str]], *, lists_all: bool = False
    ) -> None:
        self._options = options
        self._streams = streams
        self._lists_all = lists_all
        self._client: JsonClient | None = None
        self.failures: dict[str, str] = {}
        """By stream: why its shards could not be listed the last time."""

    @property
    def address(self) -> str:
        """The endpoint, or the region."""
        return self._options.endpoint_url or self._options.region or "AWS"

    async def fetch(self) -> Mapping[str, tuple[Shard, ...]]:
        """Shards by stream, of those streams that could be listed.

        Raises:
            AwsError, EfoConsumerError: no stream could be listed.
        """
        if self._client is None:
            # Looks into files, and may ask the machine for credentials.
            session = await asyncio.to_thread(AwsSession, self._options)
            self._client = JsonClient(session)
            await self._client.__aenter__()
        slots = asyncio.Semaphore(_AT_ONCE)
        streams = dict(self._streams())
        if self._lists_all:
            streams = {name: name for name in await self._all_names(self._client)} | streams
        names = sorted(streams)[:_MOST_STREAMS]
        answers = await asyncio.gather(*(self._list(self._client, streams[name], slots) for name in names))
        found = {name: shards for name, shards in zip(names, answers, strict=True) if isinstance(shards, tuple)}
        failures = [error for error in answers if isinstance(error, Exception)]
        self.failures = {
            name: str(error) for name, error in zip(names, answers, strict=True) if isinstance(error, Exception)
        }
        if failures and not found:
            raise failures[0]
        return found

    async def close(self) -> None:
        """End the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    @staticmethod
    async def _all_names(client: JsonClient) -> list[str]:
        names: list[str] = []
        more: dict[str, str] = {}
        while True:
            # An option of its own: it needs another permission than all else here.
            page = await client.call("ListStreams", {"Limit": 1_000, **more})
            names += page["StreamNames"]
            if not page["HasMoreStreams"]:
                return names
            more = {"ExclusiveStartStreamName": names[-1]}

    @staticmethod
    async def _list(client: JsonClient, name: str, slots: asyncio.Semaphore) -> tuple[Shard, ...] | Exception:
        async with slots:
            try:
                return tuple(await list_shards(client, StreamIdentity.of(name)))
            except (AwsError, EfoConsumerError) as error:
                return error
