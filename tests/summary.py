"""Adds up the JUnit reports in a folder: `N passed, N failed`, the last line.

usage: summary.py FOLDER FAILED_PHASES

A phase that failed without a failed test (it crashed, say) counts as one failure.
"""

import pathlib
import sys
import xml.etree.ElementTree

passed = failed = skipped = 0
for report in sorted(pathlib.Path(sys.argv[1]).glob("*.xml")):
    for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        gone = int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
        failed += bad
        skipped += gone
        passed += int(suite.get("tests", 0)) - bad - gone

if sys.argv[2].strip() and not failed:
    failed = 1
line = f"{passed} passed, {failed} failed"
print(line + (f", {skipped} skipped" if skipped else ""))
sys.exit(1 if failed or not passed else 0)
