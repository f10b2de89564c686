"""Numbers for people."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def seconds_words(seconds: float | None) -> str:
    """Such as `0.4 s`, `12 s`, `3 min`, `5.2 h`, `12 d`; a dash where not known."""
    if seconds is None:
        return "–"
    if seconds < 0.05:
        return "0 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for below, per, unit in ((90, 1, "s"), (5_400, 60, "min"), (172_800, 3_600, "h")):
        if seconds < below:
            return f"{seconds / per:.0f} {unit}" if per < 3_600 else f"{seconds / per:.1f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def bytes_words(count: float) -> str:
    """Such as `512 B`, `1.2 MB`: powers of ten."""
    unit = 0
    while count >= 999.5 and unit < len(_UNITS) - 1:
        count /= 1_000
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[unit]}"


def count_words(count: float) -> str:
    """Such as `1,234,567`."""
    return f"{count:,.0f}"


def rate_words(per_second: float | None, unit: str = "") -> str:
    """Such as `1,234/s`, `0.2/s`; a dash where not known."""
    if per_second is None:
        return "–"
    number = f"{per_second:,.0f}" if per_second >= 9.95 or per_second == 0 else f"{per_second:.1f}"
    return f"{number}{unit}/s"


def usd_words(usd: float | None) -> str:
    """Such as `$0.045`, `$12.30`, `under $0.001`; a dash where not known."""
    if usd is None:
        return "–"
    if 0 < usd < 0.0005:
        return "under $0.001"
    return f"${usd:,.3f}" if usd < 1 else f"${usd:,.2f}"


def shard_words(shard_id: str) -> str:
    """Such as `…42` of `shardId-000000000042`: to tell shards of one stream apart."""
    number = shard_id.removeprefix("shardId-")
    return f"…{int(number)}" if number != shard_id and number.isascii() and number.isdigit() else shard_id


def plural(count: int, one: str, several: str = "") -> str:
    """Such as `1 shard`, `1,000 shards`."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {several or one + 's'}"
