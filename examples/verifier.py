#!/usr/bin/env python3
"""A verifier: says whether the project in the working directory is good, as one JSON object.

It lies outside of the project, so that whoever works there cannot edit it. The tests do lie in
the project: that they are gone is no success, so a run of no tests is a failure.
"""
import json
import re
import subprocess
import sys

# -B: a verifier must not leave anything in the tree that it judges.
run = subprocess.run(
    [sys.executable, "-B", "-m", "unittest", "discover", "-s", "tests"],
    stdin=subprocess.DEVNULL, capture_output=True, text=True)
ran = re.search(r"^Ran (\d+) test", run.stderr, re.M)
tests = int(ran[1]) if ran else 0
bad = re.findall(r"^(?:FAIL|ERROR): (\S+)", run.stderr, re.M)

if run.returncode == 0 and tests > 0:
    verdict = {"status": "pass", "summary": f"{tests} tests pass"}
elif tests == 0:
    verdict = {"status": "fail", "summary": "no test was run", "errors": run.stderr.splitlines()[-1:]}
else:
    verdict = {"status": "fail", "summary": f"{len(bad)} of {tests} tests fail", "errors": bad}
print(json.dumps(verdict))
