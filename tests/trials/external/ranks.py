"""Starts the supervisors of a fake trainer as a launcher would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.contract.outcomes import assert_outcome_as_declared
from tests.kit import TINY, trial
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.measure_rules import MeasureRules
from trials.trial import Outcome, TrialSpec

FAKE = str(Path(__file__).with_name("fake_trainer.py"))
RULES = MeasureRules(min_steps=5, max_steps=30, max_warmup_steps=20, ci_relative_width=0.5, time_limit_s=60.0)


def local_spec(layout: Layout, trainer: Mapping[str, Any], measure: MeasureRules, **changed: Any) -> TrialSpec:
    """A trial of the tiny model on one node of as many ranks as the layout has."""
    ranks = layout.num_gpus
    place = {"global_batch_size": layout.global_batch_size, "num_gpus": ranks, "gpus_per_node": ranks}
    return trial(layout=layout, model=TINY, measure=measure, trainer=trainer, **place | changed)


def spec_for(fault: str = "", num_ranks: int = 2, rules: MeasureRules = RULES, **trainer: Any) -> TrialSpec:
    """A spec for the fake trainer as Megatron-LM on this many tensor-parallel ranks."""
    layout = Layout(tensor_parallel=num_ranks, grad_accum_steps=4, engine="megatron-lm")
    arguments = ["--fault", fault] if fault else []
    return local_spec(layout, {"kind": "megatron-lm", "script": FAKE, "arguments": arguments} | trainer, rules)


@dataclass
class Ranks:
    """The running supervisors of one attempt, in rank order."""

    folder: AttemptFolder
    processes: list[subprocess.Popen[bytes]]

    def wait(self, timeout_s: float = 120.0) -> list[int]:
        """Exit codes of the ranks; TimeoutExpired after `timeout_s`, when ranks that still run are killed."""
        deadline = time.monotonic() + timeout_s
        try:
            return [p.wait(max(0.1, deadline - time.monotonic())) for p in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def outcome(self) -> Outcome:
        data = read_json(self.folder.outcome())
        assert data is not None, self.logs()
        assert_outcome_as_declared(data)
        return Outcome.from_json(data)

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in self.folder.rank_logs())


def start(
    folder: Path,
    spec: TrialSpec,
    environment: Mapping[str, str] = MappingProxyType({}),
    supervisor: str = "trials.external",
    python: str = sys.executable,
) -> Ranks:
    attempt = AttemptFolder(folder / spec.search_id / "trials" / spec.trial / spec.attempt)
    attempt.path.mkdir(parents=True)
    write_json(attempt.spec, spec.to_json())
    ranks = range(spec.num_gpus)
    return Ranks(attempt, [_start_rank(attempt, rank, spec, environment, (python, "-m", supervisor)) for rank in ranks])


def _start_rank(
    attempt: AttemptFolder, rank: int, spec: TrialSpec, environment: Mapping[str, str], supervisor: tuple[str, ...]
) -> subprocess.Popen[bytes]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": spec.num_gpus}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER"))}
    with attempt.rank_log(rank).open("ab") as log:
        return subprocess.Popen(
            [*supervisor, str(attempt.spec)],
            env={**kept, **{name: str(value) for name, value in place.items()}, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
