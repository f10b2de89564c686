"""The error of the demo."""


class DemoError(Exception):
    """The demo cannot run, or one of its processes ended before its time.

    Cure: Follow the message. It names the log of the process; `--keep` leaves everything else too.
    """
