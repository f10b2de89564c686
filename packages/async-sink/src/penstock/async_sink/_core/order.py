"""Which order of the records a writer keeps."""

from enum import Enum


class Ordering(Enum):
    """Which order of the records a writer keeps at their destination."""

    NONE = "none"
    """Entries that fail are overtaken by newer ones while they back off. The fastest."""
    PER_KEY = "per key"
    """Records of one key arrive in the order of writing: one of them is in flight at a time, and the next one leaves
    when it is accepted, or given up. Records of different keys overtake each other. A key's rate is at most one record
    per round trip."""
    STRICT = "strict"
    """All records arrive in the order of writing: one request is in flight, and nothing overtakes what failed. Where a
    destination may accept a part of a request, requests hold one entry."""
