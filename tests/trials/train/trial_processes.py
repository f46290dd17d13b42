"""Starts the real trial program, one process per rank, as a launcher would; or forked from a warm process, which is
faster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.contract.answers import assert_outcome_as_declared
from tests.kit import LLAMA, model, trial_of
from tests.trials.train.ranks import WarmProcess, WarmRanks
from trials.analysis.early_stopping import Incumbents
from trials.attempt_result import AttemptResult, LaunchStatus, Liveness, classify
from trials.files.folders import AttemptFolder, SearchFolder, read_json, write_json
from trials.measure_rules import MeasureRules
from trials.trial import Outcome, TrialSpec

MODEL = model(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    num_key_value_heads=2,
    ffn_hidden_size=64,
    vocab_size=64,
    seq_length=16,
    tied_embeddings=False,
)
WITH_EXPERTS = replace(
    MODEL,
    **LLAMA,
    num_layers=4,
    num_experts=4,
    experts_per_token=2,
    expert_ffn_hidden_size=32,
    num_dense_layers=1,
)
RULES = MeasureRules(min_steps=8, max_steps=8, max_warmup_steps=6)
ENDLESS = MeasureRules(min_steps=10**6, max_steps=10**6, max_warmup_steps=6)
LIMIT_S = 120.0
"""Time limit for anything that takes seconds on an idle machine."""


def make_spec(layout: Layout, **fields: Any) -> TrialSpec:
    """Trial of this layout on one node with CPUs."""
    return trial_of(layout, **{"search_id": "proof-abcdef", "model": MODEL, "measure": RULES} | fields)


def best_of(spec: TrialSpec, tokens_per_sec: float) -> dict[str, object]:
    """An incumbent of this throughput, against which a trial of the search compares itself."""
    return {
        "schema": Incumbents.SCHEMA,
        "search_id": spec.search_id,
        "objectives": ["tokens_per_sec"],
        "global_batch_size": spec.global_batch_size,
        "incumbents": [{"trial": "t0009", "num_nodes": 1, "threshold": tokens_per_sec, "fingerprint": {}}],
    }


@dataclass(frozen=True)
class RunningTrial:
    spec: TrialSpec
    folder: AttemptFolder
    ranks: list[subprocess.Popen[bytes]] | list[WarmProcess]

    def wait(self, limit_s: float = LIMIT_S) -> list[int]:
        """Exit codes in rank order; AssertionError, and no rank left behind, when one is not done in time."""
        deadline = time.monotonic() + limit_s
        try:
            return [rank.wait(timeout=max(0.1, deadline - time.monotonic())) for rank in self.ranks]
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"a rank was not done within {limit_s} s\n{self.logs()}") from error
        finally:
            self.kill()

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()

    def outcome(self) -> Outcome:
        data = read_json(self.folder.outcome())
        assert data is not None, self.logs()
        assert_outcome_as_declared(data)
        return Outcome.from_json(data)

    def result(self) -> AttemptResult:
        return classify(self.spec, self.outcome(), LaunchStatus(Liveness.ENDED))

    def wait_for_steps(self, count: int) -> None:
        """Wait until this many steps have been written."""
        metrics = self.folder.metrics()
        self._wait_for(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= count)

    def wait_for_outcome(self) -> Outcome:
        """The first outcome that any rank writes."""
        self._wait_for(self.folder.outcome().exists)
        return self.outcome()

    def _wait_for(self, come: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not come():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def logs(self) -> str:
        ends = {path.name: path.read_text(errors="replace")[-4000:] for path in self.folder.rank_logs()}
        return "\n".join(f"{name}:\n{end}" for name, end in ends.items())


def start_trial(
    work_dir: Path,
    spec: TrialSpec,
    program: Sequence[str] = ("trials.train",),
    world_size: int | None = None,
    warm: WarmRanks | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    python: str = sys.executable,
) -> RunningTrial:
    """Start the ranks of `spec` as children of this process, or of a warm one; `program` is the module that each runs,
    with its arguments before the spec's path."""
    folder = SearchFolder(work_dir / spec.search_id).attempt(spec.trial, spec.attempt)
    folder.path.mkdir(parents=True)
    write_json(folder.spec, spec.to_json())
    module, *options = program
    arguments, ranks = [*options, str(folder.spec)], []
    for rank in range(world_size or spec.num_gpus):
        variables, log = rank_environment(rank, world_size or spec.num_gpus) | environment, folder.rank_log(rank)
        log.touch()
        if warm is not None:
            ranks.append(warm.start(module, arguments, variables, log))
            continue
        with log.open("ab") as out:
            streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            command = [python, "-m", module, *arguments]
            ranks.append(subprocess.Popen(command, env=variables, start_new_session=True, **streams))
    return RunningTrial(spec, folder, ranks)


def faulty(name: str) -> tuple[str, ...]:
    """The trial program with this fault."""
    return "tests.trials.train.faulty_program", name


def rank_environment(rank: int, world_size: int) -> dict[str, str]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER"))}
    return kept | place | {"PARLAY_PARENT_PID": str(os.getpid())}
