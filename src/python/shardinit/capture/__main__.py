"""`python -m shardinit.capture` is `shardinit-capture`."""

import sys

from ._command import main

sys.exit(main())
