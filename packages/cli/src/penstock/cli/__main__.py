"""`python -m penstock.cli`, and the script `penstock`."""

import sys

from penstock.cli._main import main

if __name__ == "__main__":
    sys.exit(main())
