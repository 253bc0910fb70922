"""``python -m parspec`` is the command line."""

import sys

from parspec.cli import main

sys.exit(main())
