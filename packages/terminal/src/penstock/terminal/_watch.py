"""Show something again and again: in place on a terminal, elsewhere one after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from penstock.terminal._screen import Form, Screen
from penstock.terminal._table import Table

Sleep = Callable[[float], Awaitable[None]]


async def watch(
    screen: Screen,
    look: Callable[[], Awaitable[Sequence[Table]]],
    seconds: float | None,
    *,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Look and show once, or without end every so many seconds.

    Ends by cancellation, or by an error of `look`; the terminal is left as it was, with the last table on it.
    """
    if seconds is None:
        screen.show(*await look())
        return
    if screen.form is not Form.TERMINAL or screen.console.is_dumb_terminal:
        while True:
            screen.show(*await look())
            await sleep(seconds)
    # Here: a command that answers once, and a service, draw nothing.
    from rich.live import Live

    first = await look()
    with Live(screen.render(*first), console=screen.console, auto_refresh=False) as live:
        while True:
            await sleep(seconds)
            live.update(screen.render(*await look()), refresh=True)
