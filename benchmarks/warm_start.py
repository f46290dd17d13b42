"""Benchmark of ranks that are forked after their imports, where `import torch` is slow: node-seconds a trial.

    python -m benchmarks.warm_start [--launcher local] [--import-s 20] [--json]

A line a way, plain and forked: node-seconds a trial, those of its import, and how many trials of six started warm. Both
are the same search, a trial of a few steps at a time; the launcher is local, ray, or slurm_pilot on a Slurm of its own.
"""

from __future__ import annotations

import sysconfig
import tempfile
import venv
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.output import Line, arguments_of, show
from tests.kit import ABSENT, TINY_SEARCH, search_file, search_text
from tests.orchestrator.cli.parlay import parlay
from tests.orchestrator.slurm_searches import record_of
from tests.slurm.sandboxes import sandbox
from trials.analysis.node_time import search_node_time
from trials.files.folders import SearchFolder
from trials.ranks.startup import StartupPart

TRIALS = 6
SEARCH = search_text(
    TINY_SEARCH, baseline=ABSENT, search={"parallel_trials": 1, "max_trials": TRIALS}, tracking={"enabled": False}
)
SLOW_IMPORT = """\
import sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == "torch.version":  # imported by torch, and by nobody else
            time.sleep({seconds})
sys.meta_path.insert(0, Slow())
"""


def main() -> None:
    given = arguments_of(__doc__, launcher="local", import_s=20.0)
    cluster: Any = sandbox(accounting=False) if given.launcher == "slurm_pilot" else nullcontext()
    with cluster as slurm, tempfile.TemporaryDirectory(prefix="parlay-benchmark-") as folder:
        venv.create(f"{folder}/env")
        [packages] = Path(folder, "env", "lib").glob("*/site-packages")
        (packages / "slow_import.py").write_text(SLOW_IMPORT.format(seconds=given.import_s))
        (packages / "ours.pth").write_text(f"import slow_import\n{sysconfig.get_path('purelib')}\n")
        variables = {"PARLAY_HOME": f"{folder}/home"} | (slurm.environment if slurm else {})
        changes = {"launcher": {"kind": given.launcher}, "trainer": {"python": f"{folder}/env/bin/python"}}
        show((_line(Path(folder), is_warm, variables, changes) for is_warm in (False, True)), given.json)


def _line(place: Path, is_warm: bool, variables: dict[str, str], changes: dict[str, Any]) -> Line:
    way = "forked" if is_warm else "plain"
    given = search_file(place, SEARCH, measure={"warm_start": is_warm}, work_dir=way, **changes)
    ended = parlay("run", given, cwd=place, timeout_s=3600, variables=variables)
    if ended.code != 0:
        raise SystemExit(ended.out + ended.err)
    [folder] = (path.parent for path in (place / way).glob("*/journal.jsonl"))
    search = record_of(SearchFolder(folder))
    spent = search_node_time(search)
    node_s = {"node_s": spent.node_hours, "import_node_s": spent.startup_node_hours[StartupPart.IMPORT]}
    warm = [a for trial in search.trials for a in trial.attempts if a.outcome and a.outcome.started_warm]
    return {"way": way} | {name: hours * 3600 / TRIALS for name, hours in node_s.items()} | {"warm": len(warm)}


if __name__ == "__main__":
    main()
