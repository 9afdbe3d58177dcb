"""`python -m shardinit.capture` is the same as `shardinit-capture`."""

import sys

from ._command import main

sys.exit(main())
