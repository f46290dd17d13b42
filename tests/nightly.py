"""The nightly run, step by step: `python -m tests.nightly` (`make nightly`) goes on after the last step that passed.

Steps are the files of tests marked `nightly`, an hour of disturbed searches, and mutants that also meet tests which
start processes. Results are kept in build/nightly.json; those of another commit, or of changed files, are forgotten.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from tests.sources import ROOT, TESTS

RESULTS = ROOT / "build" / "nightly.json"


def steps() -> dict[str, list[str]]:
    """Command of each step, after `python -m`."""
    files = [path for path in sorted(TESTS.rglob("test_*.py")) if "mark.nightly" in path.read_text(encoding="utf-8")]
    named = {str(path.relative_to(ROOT)): ["pytest", "-m", "nightly", str(path)] for path in files}
    disturbed = ["benchmarks.disturbed", "--minutes", "60", "--seed", str(int(commit()[:8], 16))]
    return named | {"disturbed": disturbed, "mutants": ["tests.mutants", "--slow"]}


def commit() -> str:
    """Hash of the last commit, with `-dirty` where files were changed since."""
    described = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    return subprocess.run(described, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    results = _results_of(commit())
    for name, command in steps().items():
        if results["passed"].get(name) is None:
            began = time.monotonic()
            ended = subprocess.run([sys.executable, "-m", *command], cwd=ROOT)
            if ended.returncode != 0:
                print(f"{name} failed; the next run begins with it")
                return 1
            results["passed"][name] = round(time.monotonic() - began)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        print(f"{results['passed'][name]:>6} s  {name}", flush=True)
    minutes = sum(seconds for name, seconds in results["passed"].items() if name != "mutants") / 60
    print(f"{results['commit']}: all passed, {minutes:.0f} minutes without mutants")
    return 0


def _results_of(commit: str) -> dict:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    is_same = known.get("commit") == commit and not commit.endswith("-dirty")
    return known if is_same else {"commit": commit, "passed": {}}


if __name__ == "__main__":
    sys.exit(main())
