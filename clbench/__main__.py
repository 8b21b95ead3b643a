"""``python -m clbench``."""

import sys

from clbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
