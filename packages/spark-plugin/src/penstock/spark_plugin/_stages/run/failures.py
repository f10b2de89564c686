"""Why a stage failed, and when a failed live query is restarted."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from penstock.spark_plugin.errors import PipelineDefinitionError

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+), in (\S+)')
_OF_LIBRARIES = re.compile(
    r"[/\\](site-packages|dist-packages|pyspark|lib[/\\]python[\d.]+)[/\\]|pyspark\.zip|^<frozen "
)
_OF_SPARK = re.compile(
    r"\n(?:=== Streaming Query ===|JVM stacktrace:|Driver stacktrace:|\s+at [\w.$/<>]+\().*", re.DOTALL
)
_OF_BRIDGE = re.compile(r"(?:py4j\.protocol\.Py4JJavaError: )?An error occurred while calling \S+\n: ")
# Its second id changes with each start of the query: equal failures would look different.
_OF_QUERY = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_OF_JAVA = re.compile(r"^Caused by: (\S+: (\S.*))", re.MULTILINE)
_STATE = re.compile(r"(\s*SQLSTATE: \w+)+\s*$")
_LONGEST = 500
NEVER, ON_FAILURE = "never", "on-failure"
_HOUR_SECONDS = 3600.0
# Names of temporary errors: a service that the query uses is away. All other errors are its own.
_OF_OTHERS = re.compile(
    r"^[\w.]*(Connect|Timeout|TimedOut|Unavailable|Unreachable|Throttl|BrokenPipe|Broken|Reset|EndOfFile|Interrupted)\w*"
    r"(:|$)",
    re.IGNORECASE,
)


def words(error: BaseException) -> str:
    """The cause of an error in one line.

    That is the exception of the user's code and where it was raised, or else what Spark says; then the deepest cause in
    the JVM that has a message, such as `java.io.IOException: No space left on device`; then the notes, which say whose
    function it is.
    """
    texts = [_text(one) for one in _chain(error)]
    cause, below = _first_line(texts[0]), _first_line(texts[-1])
    for text in texts:
        if found := _of_python(text):
            cause = below = found
            texts = [text.rpartition(_TRACEBACK)[2]]
            break
    message = below
    for text in texts:
        for java in _OF_JAVA.finditer(text):
            below, message = java[1][:_LONGEST], java[2][:_LONGEST]
    if message not in cause:
        cause += f"; caused by: {below}"
    cause = "; ".join([cause, *getattr(error, "__notes__", ())])
    # File names that are not UTF-8 appear in errors as lone surrogates, which services and pages do not accept.
    return cause.encode(errors="replace").decode()


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        # Spark's errors keep the errors of the JVM under another attribute.
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


def _text(error: BaseException) -> str:
    """The text of an error, with its causes in the JVM, which Spark's errors do not always show."""
    stack = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None) or ""
    return _OF_QUERY.sub("", _OF_BRIDGE.sub("", str(error).strip() or type(error).__name__)) + f"\n{stack}"


def _first_line(text: str) -> str:
    return text.splitlines()[0][:_LONGEST]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How live queries that fail are started again."""

    restart: str = NEVER
    """`never` or `on-failure`."""
    per_hour: int = 20
    """Restarts of a query within any hour, after which its stage fails; at least 1."""
    first_seconds: float = 1.0
    """Before the first restart; doubled each time that the query fails again before it has come further."""
    longest_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.restart not in (NEVER, ON_FAILURE):
            raise PipelineDefinitionError(f"restart is {self.restart!r}; it must be {NEVER!r} or {ON_FAILURE!r}")
        if self.per_hour < 1:
            raise PipelineDefinitionError(f"restarts_per_hour is {self.per_hour}; it must be at least 1")

    @classmethod
    def of(cls, restart: str, per_hour: int | None) -> Self:
        """The policy for the arguments of a user.

        Raises:
            PipelineDefinitionError: a value is invalid, or one has no effect beside another.
        """
        if per_hour is None:
            return cls(restart=restart)
        if restart == NEVER:
            raise PipelineDefinitionError(
                f"restarts_per_hour={per_hour} does nothing beside restart={NEVER!r}: give restart={ON_FAILURE!r}, "
                "or leave it out"
            )
        return cls(restart=restart, per_hour=per_hour)


@dataclass(frozen=True, slots=True)
class Restart:
    """What to do with a query that failed."""

    seconds: float | None
    """Until it is restarted; None if it is not."""
    reason: str
    """Why it is not; empty if it is."""


class QueryRestarts:
    """The failures of one query."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()
        self._last: tuple[str, int | None] | None = None
        self._in_a_row = 0

    def failed(self, now: float, error: str, batch_id: int | None) -> Restart:
        """Record a failure and decide.

        Args:
            now: Seconds of a monotonic clock.
            error: Why: a text that begins with the name of the exception.
            batch_id: The number of the micro-batch that failed; None if that is not known.
        """
        if self._policy.restart == NEVER:
            return Restart(None, "")
        before, self._last = self._last, (error, batch_id)
        same_place = before is not None and batch_id is not None and before[1] == batch_id
        if same_place and before == self._last and not _OF_OTHERS.match(error):
            return Restart(None, f"not started again: micro-batch {batch_id} failed in the same way twice")
        while self._times and now - self._times[0] >= _HOUR_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._policy.per_hour:
            return Restart(None, f"not started again: it was {self._policy.per_hour} times within an hour")
        self._times.append(now)
        self._in_a_row = self._in_a_row + 1 if same_place or batch_id is None else 0
        seconds = self._policy.first_seconds * 2.0 ** min(self._in_a_row, 30)
        return Restart(min(seconds, self._policy.longest_seconds), "")
