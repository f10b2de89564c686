"""Cancelling a task cancels its call.

The tracing interceptor waits for a call's code, and a task that is cancelled there leaves the call running: the server
would go on, and give its answer to nobody.
"""

# The published stubs make these classes generic, which they are not at run time.
# mypy: disable-error-code="type-arg"

from __future__ import annotations

import asyncio
from typing import Any

import grpc


class CancelUnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    """The innermost interceptor of an asyncio channel."""

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Wait for the call; cancel it with the task."""
        call = await continuation(client_call_details, request)
        try:
            await call.code()
        except asyncio.CancelledError:
            call.cancel()
            raise
        return call
