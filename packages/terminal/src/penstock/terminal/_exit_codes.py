"""What the end of a command says to a script."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The same for every command of Penstock."""

    OK = 0
    """Done, and nothing is wrong."""
    FAILED = 1
    """A problem was found, or what was asked for was refused or did not succeed."""
    USAGE = 2
    """Wrong usage: a flag, a setting or a file that cannot be."""
    UNREACHABLE = 3
    """A service is not there, or cannot be talked to."""
    INTERRUPTED = 130
    """By Ctrl+C, as a shell tells the end by a signal."""
