"""`python -m recallflow`: the same as `recallflow`."""

import sys

from recallflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
