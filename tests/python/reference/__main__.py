import json
import sys

from . import Digests

with open(sys.argv[1]) as file:
    model, digests = Digests(json.load(file))
for path, digest in sorted(digests.items()):
    print(digest, path)
print(model)
