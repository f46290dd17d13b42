"""A recipe's module for torchtitan, loaded and run by the real thing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.torchtitan.saved import read_saved_config
from search_spaces.adapters import Adapters
from search_spaces.decoding import decode
from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.oracles.cases import Case, export_cases
from tests.orchestrator.recipe.exported import exported, our_spec
from tests.sources import ROOT
from tests.trials.external.patched_interpreter import interpreter_in
from tests.trials.external.torchtitan_data import write_data
from tests.trials.train.parity import needs_torchtitan
from tests.trials.trainers.specs import LLAMA

pytestmark = [needs_torchtitan, pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Layouts of llama3, and models with features."""
    specs = [our_spec(EVERYTHING, replace(LLAMA, **features)) for features in FEATURES]
    return export_cases(TORCHTITAN) + [Case(spec, exported(spec)[TORCHTITAN].files) for spec in specs]


PARLAYS_OWN = {
    *("dataloader", "tokenizer", "metrics", "validator", "debug.seed", "training.steps", "training.gc_freq"),
    *("optimizer", "lr_scheduler", "model_spec.flavor", "model_spec.state_dict_adapter"),
}
"""Parts of a trial in place of the user's, and a shorter interval of garbage collections."""
WEIGHTS = re.compile(r"model_spec\.model\..*param_init(\.\w+)?")
"""Initial weights, which are torchtitan's own in the export."""


@pytest.mark.walks
def test_torchtitan_is_configured_as_the_layout_says_and_as_the_engine_configures_it(cases, tmp_path):
    for number, case in enumerate(cases):
        recipe = tmp_path / "cases" / f"case{number}" / "recipe"
        recipe.mkdir(parents=True)
        (recipe.parent / "spec.json").write_text(json.dumps(case.spec.to_json()))
        for name, text in case.files.items():
            (recipe / name).write_text(text)
    program = "tests.trials.trainers.torchtitan.engine_configs"
    command = [sys.executable, "-m", program, str(tmp_path / "cases"), str(tmp_path / "found.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == len(cases)
    for number, case in enumerate(cases):
        answer, layout = found[f"case{number}"], case.spec.layout
        saved = read_saved_config(answer["saved"])
        not_saved = {"num_nodes": layout.num_nodes, "pipeline_split": layout.pipeline_split}
        said = saved.layout | not_saved | {"matmul_precision": products_in(answer["products"])}
        assert Layout(**said, engine=TORCHTITAN).canonical() == layout
        assert model_of(saved) == case.spec.model
        assert saved.global_batch_size == case.spec.global_batch_size
        others = {name for name in answer["differing"] if not WEIGHTS.fullmatch(name)}
        assert {name for name in others if not is_parlays_own(name)} == set()


def model_of(saved: ImportedConfig) -> ModelShape:
    """The model, with the adapters that train."""
    model = ModelShape.from_json(saved.model)
    adapters = decode(Adapters, dict(saved.adapters)) if saved.adapters else None
    return replace(model, adapters=adapters, trainable=None if adapters is None else ())


def products_in(recipes: dict[str, str | None]) -> str:
    """Recipe of all linear layers but the head and routers, which have none."""
    kept = {name for name in recipes if name == "lm_head" or name.endswith(".router.gate")}
    assert {recipes[name] for name in kept} == {None}
    [recipe] = {recipes[name] for name in recipes.keys() - kept}
    return {None: "same", "mxfp8": "mxfp8"}.get(recipe, f"fp8_{recipe}")


def is_parlays_own(name: str) -> bool:
    return any(name == own or name.startswith(f"{own}.") for own in PARLAYS_OWN)


FEATURES = (
    {"attention_head_size": 32, "rotary_base": 500_000},
    {"qk_norm": True, "attention_head_size": 32, "rotary_base": 1_000_000, "tied_embeddings": False},
    {"adapters": Adapters(8, alpha=16.0, target_modules=("wqkv", "wo", "w2")), "trainable": ()},
)
EXPERTS = {
    "num_experts": 4,
    "experts_per_token": 2,
    "expert_ffn_hidden_size": 96,
    "shared_expert_ffn_hidden_size": 48,
    "num_dense_layers": 1,
}
DISTRIBUTED = Layout(
    data_parallel=2, zero_stage=3, grad_accum_steps=2, expert_parallel=2, attention_kernel="flex", engine=TORCHTITAN
)
EVERYTHING = Layout(
    tensor_parallel=2,
    pipeline_parallel=2,
    virtual_pipeline_stages=2,
    data_parallel=4,
    grad_accum_steps=4,
    zero_stage=3,
    data_parallel_replicas=2,
    activation_checkpointing="full",
    recompute_layers=1,
    precision="bf16",
    attention_kernel="flash",
    sequence_parallel=True,
    torch_compile=True,
    tensor_parallel_overlap=True,
    matmul_precision="fp8_rowwise",
    engine=TORCHTITAN,
).canonical()


FIRST_LAYERS = Layout(
    data_parallel=2,
    zero_stage=3,
    grad_accum_steps=2,
    activation_checkpointing="full",
    recompute_layers=1,
    attention_kernel="flex",
    engine=TORCHTITAN,
)


@pytest.mark.walks
@pytest.mark.parametrize(
    ("layout", "features"),
    [pytest.param(FIRST_LAYERS, FEATURES[1], marks=pytest.mark.nightly), (DISTRIBUTED, EXPERTS)],
    ids=["first-layers", "experts"],
)
def test_torchtitans_own_program_trains_the_module_by_the_recipes_command_line(layout, features, tmp_path):
    model = replace(LLAMA, num_layers=2, **features)
    export = exported(our_spec(layout, model))[TORCHTITAN]
    (tmp_path / "recipe").mkdir()
    for name, text in export.files.items():
        (tmp_path / "recipe" / name).write_text(text)
    python = interpreter_in(tmp_path / "python", "tests.trials.external.torchtitan_on_cpu")
    trained = subprocess.run(
        [python, "-m", *command_on_cpu(str(export.unrun_start), write_data(tmp_path, LLAMA.vocab_size))],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | {"HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    saved = read_saved_config((tmp_path / "outputs" / "config.json").read_text())
    assert Layout(**saved.layout, engine=TORCHTITAN).canonical() == layout.canonical()
    assert model_of(saved) == model
    losses = re.findall(r"step:\D+(\d+)\D+loss:\D+([\d.]+)", re.sub(r"\x1b\[[\d;]*m", "", trained.stdout))
    assert {int(step) for step, _ in losses} == {1, 2}
    assert all(0 < float(loss) < 10 for _, loss in losses)


ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTHONSAFEPATH": "",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def command_on_cpu(start: str, data: Path) -> list[str]:
    """The recipe's command line for two steps on the data."""
    options = [
        *("--training.steps", "2", "--metrics.log_freq", "1", "--hf_assets_path", str(data / "tokenizer")),
        *("--dataloader.dataset", "c4_test", "--dataloader.dataset_path", str(data / "texts")),
        *("--debug.save_config_file", "config.json"),
    ]
    launcher, *words = start.removesuffix("YOUR_OPTIONS").split()
    assert launcher == "torchrun"
    return ["torch.distributed.run", *words, *options]
