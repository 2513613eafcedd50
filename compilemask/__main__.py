"""`python -m compilemask`: the command `compilemask`."""

import sys

from compilemask.tools.cli import main

sys.exit(main())
