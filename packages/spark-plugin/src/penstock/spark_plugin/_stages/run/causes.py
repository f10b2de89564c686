"""Why a stage failed, in a line: the exception of the user's code where there is one, not who passed it on."""

import re
from collections.abc import Iterator

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in (\S+)')
_OF_LIBRARIES = re.compile(
    r"[/\\](site-packages|dist-packages|pyspark|lib[/\\]python[\d.]+)[/\\]|pyspark\.zip|^<frozen "
)
_OF_SPARK = re.compile(r"\n(?:=== Streaming Query ===|JVM stacktrace:|Driver stacktrace:|\s+at [\w.$]+\().*", re.DOTALL)
_STATE = re.compile(r"(\s*SQLSTATE: \w+)+\s*$")
_LONGEST = 500


def words(error: BaseException) -> str:
    """The cause of an error, where in the user's code that was raised, and what was noted: whose function it is."""
    chain = list(_chain(error))
    cause = next((found for one in chain if (found := _of_python(str(one)))), "")
    if not cause:
        cause = _first_line(error)
        below = _first_line(chain[-1])
        if below not in cause:
            cause += f"; caused by: {below}"
    cause = "; ".join([cause, *getattr(error, "__notes__", ())])
    # Names of files that are not UTF-8 are in errors as halves of pairs, which nobody takes that this is told to.
    return cause.encode(errors="replace").decode()


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        # Spark's errors have those of the JVM below them under a name of their own.
        below = getattr(one, "_cause", None) or one.__cause__
        one = below if isinstance(below, BaseException) else None


def _of_python(text: str) -> str:
    """The exception at the end of the last traceback in a text, and the last frame of it in the user's code."""
    _, found, last = _OF_SPARK.sub("", text).rpartition(_TRACEBACK)
    if not found:
        return ""
    lines, place = last.strip("\n").splitlines(), ""
    while lines and (not lines[0] or lines[0][0].isspace()):
        frame = _FRAME.match(lines.pop(0))
        if frame is not None and not _OF_LIBRARIES.search(frame[1]):
            place = f" ({frame[1]}:{frame[2]}, in {frame[3]})"
    cause = "; ".join(line.strip() for line in _STATE.sub("", "\n".join(lines)).splitlines() if line.strip())
    return cause[:_LONGEST] + place if cause else ""


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:_LONGEST]
