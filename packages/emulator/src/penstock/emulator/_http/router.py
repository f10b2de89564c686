"""From a request to the service that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.emulator._firehose import Firehose
    from penstock.emulator._http.dispatch import Dispatcher, Request, Response
    from penstock.emulator._persist.journal import Journal

_FIREHOSE = "Firehose_20150804."


class Router:
    """Kinesis and Firehose on one port, distinguished by X-Amz-Target."""

    def __init__(self, kinesis: Dispatcher, firehose: Firehose | None = None, journal: Journal | None = None) -> None:
        self._kinesis = kinesis
        self._firehose = firehose
        self._journal = journal

    async def answer(self, request: Request) -> Response:
        """Answer a request, once what it did is as safe as the options ask for.

        Raises:
            OSError: it is not safe, and must not be acknowledged.
        """
        if self._journal is None:
            return self._handle(request)
        written = self._journal.written_bytes
        response = self._handle(request)
        # What wrote nothing waits for nothing, and is answered when nothing can be written any more.
        if self._journal.written_bytes != written:
            await self._journal.synced()
        return response

    def _handle(self, request: Request) -> Response:
        target = request.headers.get("x-amz-target", "")
        if self._firehose is not None and target.startswith(_FIREHOSE):
            return self._firehose.handle(target.removeprefix(_FIREHOSE), request)
        return self._kinesis.handle(request)
