"""Whether the streams that a caller means are those that a reader behind an endpoint would read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.aws import AwsError, AwsLocation, LocationMismatch, account_of
from penstock.efo_consumer.errors import EfoConsumerError, LocationMismatchError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penstock.efo_consumer._reader.api import OpenRequest

_log = logging.getLogger(__name__)


class ReaderLocation:
    """Where a reader's streams are.

    Args:
        location: as far as the reader knows it without a call.
        stream_arn: asks for the ARN of the stream that a name means to the reader.
        endpoint_aliases: further URLs by which callers know the reader's endpoint.
    """

    def __init__(
        self,
        location: AwsLocation,
        stream_arn: Callable[[str], Awaitable[str | None]],
        endpoint_aliases: Sequence[str] = (),
    ) -> None:
        self._location = location
        self._stream_arn = stream_arn
        self._endpoint_aliases = endpoint_aliases

    async def check(self, request: OpenRequest) -> None:
        """Compare what both sides know of each stream.

        Raises:
            LocationMismatchError: they mean different streams.
        """
        consumers = {one.stream_name: one.consumer_arn for one in request.consumers}
        for stream in request.positions.streams:
            if request.caller is not None:
                await self._compare(stream, request.caller)
            # Its consumer's ARN says which stream was leased, whoever leased it.
            leased = consumers.get(stream, "").split(":")
            if len(leased) > 5:
                consumer = AwsLocation(region=leased[3], account_id=leased[4])
                self._refuse(stream, consumer.mismatch(AwsLocation(account_id=account_of(stream))))
                await self._compare(stream, consumer)

    async def _compare(self, stream: str, caller: AwsLocation) -> None:
        found = await caller.stream_mismatch(self._location, stream, self._arn, self._endpoint_aliases)
        self._refuse(stream, found)

    def _refuse(self, stream: str, different: LocationMismatch | None) -> None:
        if different is not None:
            raise LocationMismatchError(
                stream=stream, fact=different.fact, caller=different.caller, found=different.service
            )

    async def _arn(self, stream: str) -> str | None:
        try:
            return await self._stream_arn(stream)
        except (AwsError, EfoConsumerError) as error:
            # Reading needs no permission for it. The region and the endpoint are compared all the same.
            _log.warning("cannot compare the account of stream %s with its caller's: %s", stream, error)
            return None
