"""How figures and stages are put into words, for people."""

from penstock.operator_attributes._compile.plan import Stage
from penstock.operator_attributes._graph.graph import Vertex, VertexKind
from penstock.operator_attributes._schedule.states import StageProgress


def shorten(text: str, length: int) -> str:
    """At most so many characters, the middle left out: names often differ at their end."""
    if len(text) <= length:
        return text
    head = length // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def place_text(call_site: str) -> str:
    """The end of a call site, which is enough to find it: `jobs/flights.py:12` of a longer path."""
    return "/".join(call_site.replace("\\", "/").split("/")[-2:])


def count(number: int, word: str) -> str:
    """`1 stage`, `2 stages`."""
    return f"{number:,} {word}" + ("" if number == 1 else "s")


def seconds_text(seconds: float) -> str:
    """`0.25 s`, `12.5 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02} min"


def bytes_text(size_bytes: float) -> str:
    """`512 B`, `20.5 kB`, `3.2 GB`: powers of 1,000."""
    if size_bytes < 1_000:
        return f"{size_bytes:.0f} B"
    value = float(size_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= 1_000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value:,.1f} TB"


def kind_text(stage: Stage) -> str:
    """`batch, 2 slots, no checkpoints`."""
    kind = "batch" if stage.bounded else "stream"
    checkpoints = "checkpointed" if stage.checkpointed else "no checkpoints"
    return f"{kind}, {count(stage.slots, 'slot')}, {checkpoints}"


def progress_text(progress: StageProgress) -> str:
    """`FINISHED in 12.5 s, 1,095 rows, 20.5 kB`."""
    parts = [progress.state.value.upper()]
    if progress.attempts:
        parts[0] += f" {'in' if progress.state.ended else 'for'} {seconds_text(progress.seconds)}"
    if progress.attempts > 1:
        parts.append(f"attempt {progress.attempts}")
    if progress.rows is not None:
        parts.append(count(progress.rows, "row"))
    if progress.size_bytes is not None:
        parts.append(bytes_text(progress.size_bytes))
    return ", ".join(parts)


def role_text(vertex: Vertex) -> str:
    """What a vertex is: `bounded source`, `full-dam operator`, `sink`."""
    if vertex.kind is VertexKind.SOURCE and vertex.boundedness is not None:
        return f"{vertex.boundedness.value} source"
    return f"full-dam {vertex.kind.value}" if vertex.full_dam else vertex.kind.value
