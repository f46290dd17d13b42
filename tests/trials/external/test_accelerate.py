"""A user's script around the real accelerate under Parlay, on this machine's CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.layouts.layout import Layout
from tests.kit import ABSENT, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import parlay
from tests.trials.external.patched_interpreter import interpreter_in
from tests.trials.external.ranks import local_spec, start
from tests.trials.external.test_program import await_no_process_in
from tests.trials.train.trial_processes import RunningTrial
from trials.files.folders import read_json
from trials.measure_rules import MeasureRules
from trials.trainers.accelerate.launch import PLACE
from trials.trainers.registry import invocation
from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialSpec

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parent / "own_scripts/train.py"
RULES = MeasureRules(min_steps=5, max_steps=8, max_warmup_steps=4, ci_relative_width=1.0, time_limit_s=300.0)
ARGUMENTS = (
    *("--by=accelerate", "--batch={micro_batch_size}", "--accumulation={grad_accum_steps}", "--zero={zero_stage}"),
    *("--steps={train_iterations}", "--vocabulary={vocab_size}", "--width={hidden_size}"),
    *("--heads={num_attention_heads}", "--depth={num_layers}", "--length={seq_length}"),
)
PATTERNS = {
    "iteration": r"^step (\d+) took",
    "step_time_s": r" took ([\d.]+) s",
    "world_size": r"^ranks (\d+),",
}
DDP, HALF = {"data_parallel": 2}, {"precision": "bf16"}
SHARDED = {
    "zero 2": {**DDP, **HALF, "zero_stage": 2},
    "zero 3": {**DDP, "zero_stage": 3, "activation_checkpointing": "full"},
    "replicas": {"data_parallel": 4, "zero_stage": 3, "data_parallel_replicas": 2},
}
OF_TORCHRUN = ("TORCHELASTIC_", "GROUP_", "ROLE_", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "MASTER_")
"""Beginnings of variables that torchrun gives its ranks."""


@pytest.fixture(scope="module", autouse=True)
def _needs_accelerate() -> None:
    if find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed: the extra `trainers`")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory) -> str:
    """An interpreter in which accelerate has FSDP on a CPU."""
    folder = tmp_path_factory.mktemp("python")
    return str(interpreter_in(folder, "tests.trials.external.accelerate_on_cpu.start"))


def layout_of(**fields: Any) -> Layout:
    return Layout(**{"micro_batch_size": 2, "grad_accum_steps": 2, "engine": ACCELERATE_LAUNCH, **fields}).canonical()


def trainer_of(script: Path, *more: str) -> dict[str, Any]:
    return {"kind": "accelerate", "script": str(script), "arguments": [*ARGUMENTS, *more], "patterns": PATTERNS}


def spec_of(layout: Layout, *more: str, script: Path = SCRIPT, **changed: Any) -> TrialSpec:
    return local_spec(layout, trainer_of(script, *more), RULES, **changed)


def run(folder: Path, spec: TrialSpec, python: str = sys.executable) -> tuple[Outcome, RunningTrial]:
    ranks = start(folder, spec, python=python)
    ranks.wait(300.0)
    await_no_process_in(ranks.folder.path)
    return ranks.outcome(), ranks


def said(ranks: RunningTrial) -> str:
    """The script's line on what accelerate made of its configuration."""
    return next(line for line in ranks.folder.rank_log(0).read_text().splitlines() if line.startswith("ranks "))


# -- the environment of the script


PRINT = """\
import json, os
if os.environ.get("RANK", "0") == "0":
    open(os.environ["WRITTEN"], "w").write(json.dumps(dict(os.environ)))
"""


def written(command: list[str], folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    path = folder / "written.json"
    given = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER"))}
    given |= {"OMP_NUM_THREADS": "1", "WRITTEN": str(path), **environment}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(path.read_text())
    path.unlink()
    return {
        name: value
        for name, value in found.items()
        if not name.startswith(OF_TORCHRUN) and name not in (*PLACE, "ACCELERATE_TORCH_DEVICE")
    }


@pytest.mark.walks
@pytest.mark.parametrize(
    ("fields", "accelerator"),
    [
        pytest.param({**DDP, **HALF}, "cpu", id="DDP on a CPU"),
        pytest.param({**DDP, "precision": "fp16", "torch_compile": True}, "a100-80gb", id="DDP, compiled"),
        pytest.param(SHARDED["zero 2"], "a100-80gb", id="ZeRO 2"),
        pytest.param(SHARDED["zero 3"], "a100-80gb", id="ZeRO 3"),
        pytest.param(SHARDED["replicas"], "a100-80gb", id="replicas"),
        pytest.param({}, "cpu", id="one rank"),
    ],
)
def test_the_script_gets_the_environment_of_the_real_accelerate_launch(tmp_path, on_cpu, fields, accelerator):
    script = tmp_path / "written.py"  # not patched: it imports nothing
    script.write_text(PRINT)
    spec = spec_of(layout_of(**fields), script=script, accelerator=accelerator)
    made = invocation(spec, on_cpu, str(tmp_path))
    for name, text in made.files.items():
        (tmp_path / name).write_text(text)
    place = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    place |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(spec.num_gpus))
    ours = written([*made.command], tmp_path, place)
    launch = [on_cpu, "-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "accelerate.yaml")]
    assert ours == written([*launch, *made.command[3:]], tmp_path, {})


# -- trials


def test_ddp_trains_on_a_cpu_by_accelerates_own_path(tmp_path):
    outcome, ranks = run(tmp_path, spec_of(layout_of(**DDP, **HALF)))
    assert outcome.status is OutcomeStatus.MEASURED, ranks.logs()
    assert said(ranks) == "ranks 2, MULTI_CPU, bf16, reshards None, mesh None, recomputes False, threads 1"
    assert outcome.proof["world_size"] == 2
    assert (outcome.proof["unproven"], outcome.proof["observed_step"].wrapper) == ([], "DistributedDataParallel")
    assert 5 <= outcome.measured.measured_steps <= 8


@pytest.mark.walks
@pytest.mark.minutes
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero 2", "ranks 2, FSDP, bf16, reshards False, mesh (2,), recomputes False, threads 1"),
        ("zero 3", "ranks 2, FSDP, no, reshards True, mesh (2,), recomputes True, threads 1"),
        ("replicas", "ranks 4, FSDP, no, reshards True, mesh (2, 2), recomputes False, threads 1"),
    ],
)
def test_what_the_layout_says_of_fsdp_takes_effect(tmp_path, on_cpu, name, words):
    outcome, ranks = run(tmp_path, spec_of(layout_of(**SHARDED[name])), on_cpu)
    assert outcome.status is OutcomeStatus.MEASURED, ranks.logs()
    assert said(ranks) == words
    assert (outcome.proof["unproven"], outcome.proof["observed_step"].wrapper) == ([], "FSDPModule")


@pytest.mark.walks
def test_what_accelerate_would_train_otherwise_on_a_cpu_is_refused(tmp_path):
    outcome, _ = run(tmp_path / "sharded", spec_of(layout_of(**SHARDED["zero 3"])))
    assert outcome.reason is FailureReason.SCRIPT_ERROR
    assert "accelerate finds no accelerator on this node" in (outcome.excerpt or "")
    outcome, _ = run(tmp_path / "fp16", spec_of(layout_of(**DDP, precision="fp16")))
    assert outcome.reason is FailureReason.SCRIPT_ERROR
    assert "accelerate trains in fp32 on a CPU where fp16 is asked for" in (outcome.excerpt or "")


def test_a_python_without_accelerate_is_refused_by_the_launcher():
    launcher = invocation(spec_of(layout_of(**DDP)), "python", ".").command[1]
    done = subprocess.run(
        [sys.executable, "-S", launcher, "accelerate.yaml", str(SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "accelerate is not installed: engine accelerate-launch was verified with accelerate>=1.15.0,<1.16;"
        " pip install 'accelerate>=1.15.0,<1.16'\n"
    )


# -- a search


@pytest.mark.walks
@pytest.mark.minutes
def test_a_search_on_a_cpu_measures_ddp_alone_and_ends_in_a_recipe_that_is_replayed(tmp_path):
    path = search_file(
        tmp_path,
        TINY_SEARCH,
        baseline=ABSENT,
        space={"tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": [0, 3], "micro_batch_size": [1, 2]},
        search={"sampler": "grid"},
        measure={"early_stopping": False},
        tracking={"enabled": False},
        trainer=trainer_of(SCRIPT) | {"python": sys.executable},
    )
    answer = parlay("run", path, "--json", cwd=tmp_path, timeout_s=500)
    assert answer.code == 0, answer.err
    assert (answer.json["trials"]["measured"], answer.json["trials"]["failed"]) == (2, 0), answer.err
    assert answer.json["best"]["layout"]["engine"] == ACCELERATE_LAUNCH
    assert "emulated_device" not in answer.json["best"]["flags"]
    recipe = Path(answer.json["recipe"])
    text = (recipe / "accelerate.yaml").read_text()
    assert "measured with this trainer.\n" in text
    outcomes = [Outcome.from_json(read_json(found)) for found in recipe.parent.glob("trials/*/a1/outcome.r0.json")]
    assert {outcome.fingerprint["accelerate"] for outcome in outcomes} == {version("accelerate")}
    [line] = (line for line in text.splitlines() if "torchrun" in line)
    command = line.removeprefix("# ").replace("YOUR_ITERATIONS", "1")
    bins = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    trained = subprocess.run(
        command, shell=True, cwd=recipe.parent, env=bins, capture_output=True, text=True, check=True
    )
    assert "ranks 2, MULTI_CPU, no," in trained.stdout
    replayed = parlay("replay", answer.json["search_id"], "--repeats", "1", "--sessions", "1", "--json", cwd=tmp_path)
    # Measured again; the verdict is that of a machine whose cores are shared.
    assert replayed.json["measured"] is not None, replayed.err
