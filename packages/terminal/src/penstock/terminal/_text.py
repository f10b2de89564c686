"""Values as people read them."""

from typing import Final

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def plain(text: str) -> str:
    """Text that can neither end a line or a cell, nor steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def age(seconds: float) -> str:
    """The two largest units: `3d 4h`, `5m 10s`, `0s`."""
    rest = int(seconds)
    parts: list[str] = []
    for size_, unit in _UNITS:
        count, rest = divmod(rest, size_)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


def size(count: float) -> str:
    """Bytes in powers of 1,024: `0 B`, `1.5 KiB`, `20.0 MiB`."""
    if count < 1024:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        count /= 1024
        if count < 1024:
            return f"{count:.1f} {unit}"
    return f"{count / 1024:.1f} TiB"


def bar(share: float, width: int = 12, *, ascii_only: bool = False) -> str:
    """A bar of `width` characters, filled to a share between 0 and 1; what is not nothing shows."""
    share = min(1.0, max(0.0, share))
    if ascii_only:
        return ("#" * (max(1, round(share * width)) if share else 0)).ljust(width)
    eighths = max(1, round(share * width * 8)) if share else 0
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)
