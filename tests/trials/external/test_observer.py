"""The observer in a trainer's ranks, in real trainings on this machine's CPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.kit import SPEC
from tests.trials.external.ranks import local_spec, start
from tests.trials.train.trial_processes import RunningTrial
from trials.external import observer
from trials.measure_rules import MeasureRules
from trials.trainers.common.trainer_log import StepReader
from trials.trainers.registry import LOG_FORMATS
from trials.trial import FailureReason, Flag, Outcome, TrialSpec

SCRIPT = Path(__file__).parent / "own_scripts" / "train.py"
RULES = MeasureRules(min_steps=4, max_steps=4, max_warmup_steps=2, ci_relative_width=9.0, time_limit_s=7200.0)
OPTIONS = (
    "--batch {micro_batch_size} --accumulation {grad_accum_steps} --steps {train_iterations} --zero {zero_stage}"
    " --vocabulary {vocab_size} --width {hidden_size} --heads {num_attention_heads} --depth {num_layers}"
    " --length {seq_length}"
)
LAYOUT = Layout(micro_batch_size=2, grad_accum_steps=3, engine="command")
OBSERVER = Path(observer.__file__).parent


def spec_of(layout: Layout = LAYOUT, by: str = "torch", fault: str = "", **trainer: Any) -> TrialSpec:
    template = f"{{python}} {SCRIPT} {OPTIONS} --by {by}" + (f" --fault '{fault}'" if fault else "")
    patterns = {"iteration": r"^step (\d+) took", "step_time_s": r" took ([\d.]+) s"}
    section = {"kind": "command", "template": template, "patterns": patterns} | trainer
    return local_spec(layout.canonical(), section, RULES)


def run(folder: Path, spec: TrialSpec) -> tuple[Outcome, RunningTrial]:
    ranks = start(folder, spec)
    ranks.wait()
    return ranks.outcome(), ranks


TWO = replace(LAYOUT, data_parallel=2)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("by", "layout", "wrapper"),
    [
        ("torch", LAYOUT, None),
        ("looks for torch first", LAYOUT, None),
        pytest.param("recomputes all", LAYOUT, None, marks=pytest.mark.walks),
        ("torch", TWO, "DistributedDataParallel"),
        pytest.param("compile", TWO, "DistributedDataParallel", marks=pytest.mark.nightly),
        *(
            pytest.param(by, layout, wrapper, marks=pytest.mark.walks)
            for by, layout, wrapper in (
                ("tried before", TWO, "DistributedDataParallel"),
                ("reduces in its optimizer", TWO, None),
                ("steps by a closure", TWO, "DistributedDataParallel"),
                ("deepspeed", replace(TWO, zero_stage=3), "DeepSpeedEngine"),
                ("trainer", TWO, "DistributedDataParallel"),
            )
        ),
    ],
)
def test_a_training_as_the_layout_says_is_proven(tmp_path, by, layout, wrapper):
    if by == "trainer" and find_spec("transformers") is None:
        pytest.skip("transformers is not installed: the extra `trainers`")
    spec = spec_of(layout, fault=by) if " " in by else spec_of(layout, by)
    outcome, ranks = run(tmp_path, spec)
    assert outcome.measured is not None, ranks.logs()
    seen = outcome.proof["observed_step"]
    assert (outcome.proof["unproven"], Flag.UNPROVEN in outcome.flags) == ([], False), seen
    assert (seen.wrapper, seen.world_size) == (wrapper, layout.data_parallel)
    assert seen.parameters == seen.trainable_parameters
    assert [list(shape) for shape in seen.inputs] == [[2, spec.model.seq_length, 3]]


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "layout", "words"),
    [
        ("one layer less", LAYOUT, "parameters, the model section's"),
        ("no reduction", TWO, "its 2 ranks have different gradients"),
        *(
            pytest.param(fault, layout, words, marks=pytest.mark.walks)
            for fault, layout, words in (
                ("frozen", LAYOUT, "it trains"),
                ("optimizer of the embedding", LAYOUT, "its optimizer has"),
                ("reduces all but a block", TWO, "its 2 ranks have different gradients"),
                ("fixed batch", LAYOUT, "trains 3 sequences a step, the layout has 6"),
                ("every rank alone", TWO, "a world size of 1, the trial 2 ranks"),
                ("rank 1 trains less", TWO, "trains 3 sequences a step, the layout has 6"),
                ("splits nothing", replace(LAYOUT, tensor_parallel=2), "the layout splits it: tensor 2"),
                ("milliseconds", LAYOUT, "but their lines arrived within"),
            )
        ),
    ],
)
def test_a_training_of_something_else_is_not_credited_to_the_layout(tmp_path, fault, layout, words):
    outcome, ranks = run(tmp_path, spec_of(layout, fault=fault))
    assert outcome.reason is FailureReason.RESULT_INVALID, ranks.logs()
    assert words in (outcome.excerpt or "")


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("spec", "names"),
    [
        (spec_of(observe=False), ["global_batch_size", "parameters", "world_size"]),
        pytest.param(spec_of(TWO, fault="no reduction of one batch"), ["data_parallel"], marks=pytest.mark.walks),
    ],
)
def test_a_training_that_nothing_shows_is_measured_and_unproven(tmp_path, spec, names):
    outcome, ranks = run(tmp_path, spec)
    assert outcome.measured is not None, ranks.logs()
    assert Flag.UNPROVEN in outcome.flags
    assert outcome.proof["unproven"] == names


def python(folder: Path, code: str, *options: str, **variables: str) -> str:
    environment = {"PYTHONPATH": f"{OBSERVER}:{folder}", "PARLAY_OBSERVED_STEP": str(folder / "seen.json"), **variables}
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.processes
def test_the_sites_own_sitecustomize_runs_and_nothing_heavy_is_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.site_was_here = __name__\n")
    code = "import sys; print(sys.site_was_here, sys.modules['sitecustomize'].__file__, 'torch' in sys.modules)"
    assert python(tmp_path, code).split() == ["sitecustomize", str(tmp_path / "sitecustomize.py"), "False"]
    (tmp_path / "sitecustomize.py").unlink()
    assert python(tmp_path, "import sys; print([e for e in sys.path if 'observer' in e], 'json' in sys.modules)") == (
        "[] False\n"
    )


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.slow
def test_the_observer_is_gone_after_the_second_step(tmp_path):
    code = """if True:
        import torch
        from torch.optim import optimizer
        call = torch.nn.Module.__call__
        model = torch.nn.Embedding(8, 4)
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
            descent.step()
        after = torch.nn.Module.__call__
        print(call is after, after is torch.nn.Module._wrapped_call_impl, len(optimizer._global_optimizer_pre_hooks))
    """
    assert python(tmp_path, code).split() == ["False", "True", "0"]
    assert (tmp_path / "seen.json").exists()


@pytest.mark.processes
@pytest.mark.slow
def test_a_step_is_what_follows_backward_passes_and_one_of_another_batch_has_no_time(tmp_path):
    code = """if True:
        import torch
        model = torch.nn.Embedding(8, 4)
        both = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.AdamW(model.parameters(), lr=0.1)]
        both[0].step()  # before any pass
        for accumulated in (3, 3, 6, 3, 3, 3):  # the third had an update left out
            for _ in range(accumulated):
                model(torch.zeros(2, 3, dtype=torch.long)).sum().backward()
            with torch.no_grad():
                model(torch.zeros(2, 3, dtype=torch.long))
            for optimizer in (*both, both[0]):
                optimizer.step()
    """
    lines = python(tmp_path, code, PARLAY_TIMED_STEPS="1").splitlines()
    steps = [StepReader(LOG_FORMATS["observer"], SPEC).feed(line) for line in lines]
    assert [step.iteration for step in steps if step is not None] == [2, 5, 6]
    assert not any("parlay" in line for line in python(tmp_path, code).splitlines())


@pytest.mark.processes
@pytest.mark.slow
def test_the_lengths_of_documents_are_read_from_masks_and_positions(tmp_path):
    code = """if True:
        import json, torch
        class Model(torch.nn.Embedding):
            def forward(self, input_ids, attention_mask=None, position_ids=None):
                return super().forward(input_ids)
        model = Model(8, 4)
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        def step(batches):
            for given in batches:
                model(torch.zeros(2, 4, dtype=torch.long), **given).sum().backward()
            descent.step()
        mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
        positions = torch.tensor([[0, 1, 0, 1], [0, 1, 2, 0]])
        step([{"attention_mask": mask}])
        both = {"attention_mask": mask, "position_ids": positions}
        step([{"attention_mask": mask}, {"position_ids": positions}, both])
        seen = json.load(open("seen.json"))
        print(seen["documents"], seen["real_tokens"], seen["squared_lengths"])
    """
    assert python(tmp_path, code).split() == ["9", "20", "52"]


@pytest.mark.processes
@pytest.mark.slow
def test_weights_in_4_bits_are_counted_one_by_one(tmp_path):
    pytest.importorskip("bitsandbytes")
    code = """if True:
        import bitsandbytes, json, torch
        frozen = bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float32)
        model = torch.nn.Sequential(torch.nn.Embedding(8, 64), frozen.to("cpu")).requires_grad_(False)
        model[0].requires_grad_(True)
        descent = torch.optim.SGD(model[0].parameters(), lr=0.1)
        for _ in range(2):
            model(torch.zeros(2, 4, dtype=torch.long)).sum().backward()
            descent.step()
        seen = json.load(open("seen.json"))
        print("seen", seen["parameters"], seen["trainable_parameters"])
    """
    assert python(tmp_path, code).splitlines()[-1].split() == ["seen", str(64 * 64 + 8 * 64), str(8 * 64)]
