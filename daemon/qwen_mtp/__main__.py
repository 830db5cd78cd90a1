"""`python3 -m qwen_mtp` is the `qwen-mtp` command."""

import sys

from qwen_mtp.cli import main

sys.exit(main())
