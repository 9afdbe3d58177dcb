import json
import pathlib
import sys

from . import Digests

with open(sys.argv[1]) as file:
    model, digests = Digests(json.load(file), [pathlib.Path(path).read_bytes() for path in sys.argv[2:]])
for path, digest in sorted(digests.items()):
    print(digest, path)
print(model)
