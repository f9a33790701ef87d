"""The entry point of `python -m octavo`, which is the same as `octavo`."""

import sys

from octavo.cli import main

sys.exit(main())
