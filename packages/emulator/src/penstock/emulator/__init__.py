"""An embedded Amazon Kinesis with the enhanced fan-out life cycle, for tests."""

import lazy_loader

# On first use: the pytest plugin is imported in every test run, of people who may not use the emulator in it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
