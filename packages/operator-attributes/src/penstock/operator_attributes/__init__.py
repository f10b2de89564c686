"""Job graphs, blocking edges and stages: plan bounded work before the live stage."""

import lazy_loader

# On first use: Spark imports this package in processes that need little of it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
