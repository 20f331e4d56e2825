"""`python -m forerun`: the same as the `forerun` command, for an environment whose scripts are not on the path."""

import sys

from forerun.cli import main

if __name__ == "__main__":
    sys.exit(main())
