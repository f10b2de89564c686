"""A Kinesis reader to Apache Arrow: enhanced fan-out and polling, exact ranges, back-pressure."""

import lazy_loader

# On first use: each of Spark's Python workers imports this package, for `read_ranges` alone.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
