import json
import pathlib
import sys

from . import digests_of

with open(sys.argv[1]) as file:
    model, digests = digests_of(json.load(file), [pathlib.Path(path).read_bytes() for path in sys.argv[2:]])
for path, digest in sorted(digests.items()):
    print(digest, path)
print(model)
