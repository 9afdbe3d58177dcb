"""``python -m shardinit`` runs the program shardinit with the same arguments."""

import os
import sys

from ._errors import LibraryError
from ._native import program

try:
    found = program()
except LibraryError as error:
    print(f"shardinit: error: {error}", file=sys.stderr)
    sys.exit(3)
os.execv(found, ["shardinit", *sys.argv[1:]])
