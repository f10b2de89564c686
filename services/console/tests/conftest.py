"""Lets the tests of this folder import what they share: pytest imports each test file by itself."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
