"""Where the user's code declared something."""

import sys
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parent)


def caller(*, also_skip: tuple[str, ...] = ()) -> str:
    """`file:line` of the nearest frame outside of this package; empty if there is none.

    `also_skip`: paths that a caller's file must not begin with either, for libraries that wrap this one.
    """
    skip = (_PACKAGE, *also_skip)
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(skip):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
