"""Benchmark of ranks that are forked after their imports, over ranks that are started plain: ratios from one run.

    python -m benchmarks.warm_start [--rounds 5] [--engine torch|deepspeed] [--json]

Each round launches a short trial of two ranks both ways, in turn, by the local launcher. `first_collective`: time from
the launch until the ranks have met and counted each other. `first_step`: until the first optimizer step has ended.
`trial`: until the attempt has ended. The server's own imports, once a search, are in `server_s`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.trainer import STARTUP_LAYOUT, STARTUP_MODEL, STARTUP_RULES
from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from trials.attempt_result import Liveness
from trials.files.folders import SearchFolder, read_json, write_json
from trials.measurement.step_log import read_metrics
from trials.trial import Outcome, TrialKind, TrialSpec, utc_seconds

_PARTS = ("import", "rendezvous")
"""Parts of the start until the first collective, which ends the rendezvous."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=("torch", "deepspeed"), default="torch")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measured(arguments.engine, arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:32} {value:8.3f}")


def measured(engine: str, rounds: int) -> dict[str, float]:
    """Medians in seconds of both ways, and the warm one over the plain one."""
    with tempfile.TemporaryDirectory(prefix="parlay-benchmark-") as folder:
        root = Path(folder)
        snapshot_code(root / "code")
        with closing(LocalLauncher([[]])) as launcher:
            first = _run(launcher, root, engine, 0, is_warm=True)
            runs = [
                {way: _run(launcher, root, engine, 2 * number + way, is_warm=bool(way)) for way in (0, 1)}
                for number in range(1, rounds + 1)
            ]
    found = {}
    for name in first:
        plain, warm = (median(run[way][name] for run in runs) for way in (0, 1))
        found |= {f"{name}_plain_s": plain, f"{name}_warm_s": warm, f"{name}_ratio": warm / plain}
    return {"server_s": first["first_collective"] - found["first_collective_warm_s"], **found}


def _run(launcher: LocalLauncher, root: Path, engine: str, number: int, is_warm: bool) -> dict[str, float]:
    spec = TrialSpec(
        search_id="benchmark-abcdef",
        trial=f"t{number:04d}",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=replace(STARTUP_LAYOUT, engine=engine),
        model=STARTUP_MODEL,
        global_batch_size=STARTUP_LAYOUT.global_batch_size,
        num_gpus=STARTUP_LAYOUT.num_gpus,
        gpus_per_node=STARTUP_LAYOUT.num_gpus,
        accelerator="cpu",
        measure=replace(STARTUP_RULES, warm_start=None if is_warm else False),
    )
    folder = SearchFolder(root / spec.search_id).attempt(spec.trial, spec.attempt)
    folder.path.mkdir(parents=True)
    write_json(folder.spec, spec.to_json())
    began = time.time()
    launcher.launch(LaunchRequest(spec, folder, sys.executable, str(root / "code"), spec.measure.time_limit_s))
    while launcher.poll([spec.attempt_key])[spec.attempt_key].liveness is not Liveness.ENDED:
        launcher.wait(60)
    ended = time.time()
    outcome = Outcome.from_json(read_json(folder.outcome()) or {})
    if outcome.metrics is None or outcome.started_warm is not is_warm:
        raise SystemExit(f"a trial was not measured, or started another way:\n{folder.rank_log(0).read_text()}")
    parts = outcome.metrics.startup_parts_s or {}
    assert outcome.started_at is not None
    return {
        "first_collective": utc_seconds(outcome.started_at) - began + sum(parts[name] for name in _PARTS),
        "first_step": utc_seconds(read_metrics(folder.metrics())[0].time) - began,
        "trial": ended - began,
    }


if __name__ == "__main__":
    main()
