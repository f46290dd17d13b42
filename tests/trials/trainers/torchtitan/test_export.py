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

from benchmarks.check_exports import Checked, checked, question
from benchmarks.export_cases import Case, export_cases
from benchmarks.parser_process import ask
from orchestrator.importers.torchtitan.saved import read_saved_config
from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS, chunk_layers
from search_spaces.model_shape import ModelShape
from tests.orchestrator.recipe.export_readers import read_export
from tests.orchestrator.recipe.exported import exported, our_spec
from tests.sources import ROOT
from tests.trials.train.parity import needs_torchtitan
from tests.trials.trainers.specs import LLAMA
from trials.trainers.torchtitan.module import CONFIG_FILE

pytestmark = [needs_torchtitan, pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """Layouts of llama3, and models with features."""
    specs = [our_spec(EVERYTHING, replace(LLAMA, **features)) for features in FEATURES]
    return export_cases(TORCHTITAN) + [Case(spec, exported(spec)[TORCHTITAN].files) for spec in specs]


def read_by_torchtitan(cases: list[Case], folder: Path) -> list[Checked]:
    questions = [question(TORCHTITAN, case, folder / f"{n}") for n, case in enumerate(cases)]
    answers = ask(TORCHTITAN, folder, questions, folder)
    return [checked(TORCHTITAN, case, answer) for case, answer in zip(cases, answers, strict=True)]


def test_torchtitan_is_configured_as_the_layout_says(cases, tmp_path):
    found = read_by_torchtitan(cases, tmp_path)
    assert not {one.layout: one.differing for one in found if one.differing or not one.is_loaded}


PARLAYS_OWN = {
    *("dataloader", "tokenizer", "metrics", "validator", "debug.seed", "training.steps", "training.gc_freq"),
    *("optimizer", "lr_scheduler", "model_spec.flavor", "model_spec.state_dict_adapter"),
}
"""Parts of a trial in place of the user's, and a shorter interval of garbage collections."""
WEIGHTS = re.compile(r"model_spec\.model\..*param_init(\.\w+)?")
"""Initial weights, which are torchtitan's own in the export."""


def test_every_module_is_read_back_as_its_layout(cases):
    for case in cases:
        layout, model = read_export(TORCHTITAN, case.files, case.spec)
        assert (with_layers(layout, case.spec.model), ModelShape(**model)) == (
            with_layers(case.spec.layout, case.spec.model),
            case.spec.model,
        )


def with_layers(layout: Layout, model: ModelShape) -> tuple[Layout, tuple[int, ...]]:
    """A layout without its split, and the layers of each chunk: rules of several names may split layers alike."""
    return replace(layout, **{name: AXES[name].default for name in SPLIT_FIELDS}), chunk_layers(model, layout)


def test_the_engine_configures_torchtitan_as_the_module_does(cases, tmp_path):
    for number, case in enumerate(cases):
        recipe = tmp_path / "cases" / f"case{number}" / "recipe"
        recipe.mkdir(parents=True)
        (recipe.parent / "spec.json").write_text(json.dumps(case.spec.to_json()))
        for name, text in case.files.items():
            (recipe / name).write_text(text)
    program = "tests.trials.trainers.torchtitan.engine_configs"
    command = [sys.executable, "-m", program, str(tmp_path / "cases"), str(tmp_path / "differences.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "differences.json").read_text())
    assert len(found) == len(cases)
    for names in found.values():
        others = {name for name in names if not WEIGHTS.fullmatch(name)}
        assert {name for name in others if not is_parlays_own(name)} == set()


def is_parlays_own(name: str) -> bool:
    return any(name == own or name.startswith(f"{own}.") for own in PARLAYS_OWN)


FEATURES = (
    {"attention_head_size": 32, "rotary_base": 500_000},
    {"qk_norm": True, "attention_head_size": 32, "rotary_base": 1_000_000, "tied_embeddings": False},
)
EXPERTS = {
    "num_experts": 4,
    "experts_per_token": 2,
    "expert_ffn_hidden_size": 96,
    "shared_expert_ffn_hidden_size": 48,
    "num_dense_layers": 1,
}
DISTRIBUTED = Layout(
    data_parallel=2,
    zero_stage=3,
    grad_accum_steps=2,
    expert_parallel=2,
    attention_kernel="flex",
    engine=TORCHTITAN,
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
CHANGES = (
    ("n_layers=8", "n_layers=12", "num_layers"),
    ("hidden_dim=192", "hidden_dim=256", "ffn_hidden_size"),
    ("n_kv_heads=2", "n_kv_heads=4", "num_key_value_heads"),
    ("head_dim=None", "head_dim=32", "head_size"),
    ("rope_theta=10000", "rope_theta=500000", "rotary_base"),
    ("enable_weight_tying=False", "enable_weight_tying=True", "tied_embeddings"),
    ('"varlen"', '"flex"', "attention_kernel"),
    ("local_batch_size=4", "local_batch_size=2", "grad_accum_steps"),
    ("global_batch_size=16", "global_batch_size=32", "global_batch_size"),
    ("seq_len=32", "seq_len=64", "seq_length"),
    ("max_seq_len=32", "max_seq_len=64", "max_positions"),
    ('mixed_precision_param="bfloat16"', 'mixed_precision_param="float32"', "precision"),
    ('dtype="float32"', 'dtype="bfloat16"', "precision"),
    ("replicate_degree=2", "replicate_degree=1", "not loaded"),
    ("tensor_parallel_degree=2", "tensor_parallel_degree=1", "not loaded"),
    ("pipeline_parallel_degree=2", "pipeline_parallel_degree=1", "not loaded"),
    ('reshard_after_forward="always"', 'reshard_after_forward="default"', "zero_stage"),
    ("enable_sequence_parallel=True", "enable_sequence_parallel=False", "sequence_parallel"),
    ('"Interleaved1F1B"', '"GPipe"', "pipeline_schedule"),
    ("microbatch_size=1", "microbatch_size=2", "micro_batch_size"),
    ('["layers.2", "layers.3"],', "", "virtual_pipeline_stages"),
    ("FirstLayersAC.Config", "(lambda **_: None)", "activation_checkpointing"),
    ("            layers=1,", "            layers=2,", "recompute_layers"),
    ("enable=True", "enable=False", "not loaded"),
    ("enable_async_tensor_parallel=True", "enable_async_tensor_parallel=False", "tensor_parallel_overlap"),
    ('recipe_name="rowwise"', 'recipe_name="rowwise_with_gw_hp"', "matmul_precision"),
    ('filter_fqns=["lm_head"]', "filter_fqns=[]", "matmul_precision"),
    ("model = converter.build().convert(model)", "pass", "matmul_precision"),
    ("disable_cuda_graphs=True", "disable_cuda_graphs=False", "not loaded"),
)
"""Changes to the module of EVERYTHING, each with the first field that then differs."""
EXPERT_CHANGES = (
    ("expert_parallel_degree=2", "expert_parallel_degree=1", "expert_parallel"),
    ("num_experts=4", "num_experts=8", "num_experts"),
    ("experts_per_token=2", "experts_per_token=1", "experts_per_token"),
    ("            expert_hidden_dim=96", "            expert_hidden_dim=64", "expert_width"),
    ("shared_expert_hidden_dim=48", "shared_expert_hidden_dim=None", "shared_expert_ffn_hidden_size"),
    ("num_dense_layers=1", "num_dense_layers=2", "expert_layers"),
    ("expert_layer_every=1", "expert_layer_every=2", "expert_layers"),
    ("route_norm=True", "route_norm=False", "routing"),
    ('score_func="softmax"', 'score_func="sigmoid"', "routing"),
    ("load_balance_coeff=None", "load_balance_coeff=1e-3", "routing"),
)
"""Changes to the module of DISTRIBUTED experts."""


@pytest.mark.parametrize(
    ("layout", "features", "changes"),
    [(EVERYTHING, {}, CHANGES), (DISTRIBUTED.canonical(), EXPERTS, EXPERT_CHANGES)],
    ids=["everything", "experts"],
)
def test_every_change_to_the_module_is_seen(layout, features, changes, tmp_path):
    spec = our_spec(layout, replace(LLAMA, **features))
    files = exported(spec)[TORCHTITAN].files
    changed = [Case(spec, {**files, CONFIG_FILE: change(files[CONFIG_FILE], old, new)}) for old, new, _ in changes]
    unchanged, *found = read_by_torchtitan([Case(spec, files), *changed], tmp_path)
    assert unchanged.is_loaded
    assert not unchanged.differing
    for one, (old, new, field) in zip(found, changes, strict=True):
        assert any(sentence.startswith(field) for sentence in one.differing), (old, new, one.differing)


def change(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


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
    ("layout", "features"), [(FIRST_LAYERS, FEATURES[1]), (DISTRIBUTED, EXPERTS)], ids=["first-layers", "experts"]
)
def test_torchtitans_own_program_trains_the_module_by_the_recipes_command_line(layout, features, tmp_path):
    model = replace(LLAMA, num_layers=2, **features)
    export = exported(our_spec(layout, model))[TORCHTITAN]
    (tmp_path / "recipe").mkdir()
    for name, text in export.files.items():
        (tmp_path / "recipe" / name).write_text(text)
    trained = subprocess.run(
        [sys.executable, "-m", *command_on_cpu(str(export.unrun_start), write_data(tmp_path))],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | {"HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr[-2000:]
    saved = read_saved_config((tmp_path / "outputs" / "config.json").read_text())
    assert Layout(**saved.layout, engine=TORCHTITAN).canonical() == layout.canonical()
    assert ModelShape.from_json(saved.model) == model
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
    """The recipe's command line for two steps on the data, with torchtitan's program behind patches."""
    on_cpu = start.replace("torchtitan.train", "tests.trials.external.torchtitan_on_cpu")
    options = [
        *("--training.steps", "2", "--metrics.log_freq", "1", "--hf_assets_path", str(data / "tokenizer")),
        *("--dataloader.dataset", "c4_test", "--dataloader.dataset_path", str(data / "texts")),
        *("--debug.save_config_file", "config.json"),
    ]
    launcher, *words = on_cpu.removesuffix("YOUR_OPTIONS").split()
    assert launcher == "torchrun"
    return ["torch.distributed.run", *words, *options]


def write_data(folder: Path) -> Path:
    """A tokenizer of words and a few texts of them."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    names = [f"w{number}" for number in range(LLAMA.vocab_size - len(special))]
    vocabulary = {name: index for index, name in enumerate([*names, *special.values()])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for name in ("tokenizer", "texts"):
        (folder / name).mkdir()
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(special))
    texts = (" ".join(names[(7 * text + word) % len(names)] for word in range(200)) for text in range(50))
    (folder / "texts" / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder
