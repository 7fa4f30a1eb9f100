"""`python -m orchestration`: the same as `cloze`, for places where the console script is not installed."""

import sys

from orchestration.cli import main

sys.exit(main())
