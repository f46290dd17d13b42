from __future__ import annotations

import json
import re

import pytest
import yaml

from orchestrator.config.draft import origin_lines
from orchestrator.config.init import render_example, render_from
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from search_spaces.schema.validation import FILL_IN
from tests.orchestrator.config.importers.samples import BRIDGE, DEEPSPEED, HF_LLAMA, MEGATRON_LM


def started_from(tmp_path, name: str, text: str):
    """The resulting search, its notes and its YAML."""
    source = tmp_path / name
    source.write_text(text)
    yaml_text, notes = render_from(source)
    return loaded(tmp_path, yaml_text), notes, yaml_text


def loaded(tmp_path, yaml_text: str):
    """The search, after its user has filled in the accelerator, the sequence length and the trainer's script."""
    file = tmp_path / "search.yaml"
    for key, value in (("accelerator", "h100-80gb"), ("seq_length", "1024"), ("script", "/shared/pretrain_gpt.py")):
        yaml_text = yaml_text.replace(f"{key}: {FILL_IN}", f"{key}: {value}")
    file.write_text(yaml_text)
    return load_search_file(file)


def test_the_accelerator_is_asked_for_and_never_guessed(tmp_path):
    (tmp_path / "x.sh").write_text(MEGATRON_LM)
    text, notes = render_from(tmp_path / "x.sh")
    assert "cluster.accelerator is unknown: fill it in." in notes
    (tmp_path / "search.yaml").write_text(text)
    with pytest.raises(InputError, match="FILL_IN") as refused:
        load_search_file(tmp_path / "search.yaml")
    assert refused.value.problems[0].key == "cluster.accelerator"
    assert refused.value.problems[0].fix.startswith("fill this in: one of v100-16gb, ")


def test_the_example_is_valid_as_it_is_and_has_layouts_to_try(tmp_path):
    spec = loaded(tmp_path, render_example())
    space = candidates_of(spec)
    assert len(space.layouts) > 12
    assert space.baseline is not None
    assert spec.baseline.tensor_parallel == 4


def test_a_megatron_lm_script_becomes_a_search_around_the_layout_it_runs(tmp_path):
    """tests/orchestrator/config/importers/test_corpus.py has the layouts of many more files."""
    spec, notes, text = started_from(tmp_path, "pretrain_gpt.sh", MEGATRON_LM)
    assert (spec.name, spec.baseline.shape) == ("pretrain-gpt", "tensor 2 x pipeline 4 x data 2")
    assert len(candidates_of(spec).layouts) > 20
    dropout = ("--attention-dropout", "0.1", "--hidden-dropout", "0.1")
    data = ("--lr", "6.0e-5", "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", "gpt2-vocab.json")
    assert (spec.trainer.kind, spec.trainer.arguments) == ("megatron-lm", data + dropout)
    assert spec.model.has_dropout
    assert notes[-1].startswith("Trials run megatron-lm, the trainer of this file")
    assert "# - Trials run megatron-lm" in text


GIVEN = "--tokenizer-type GPT2BPETokenizer --vocab-file $VOCAB_FILE"
DATA = "--data-path 0.5 /data/a 0.5 /data/b --split=98,2,0 --tokenizer-type NullTokenizer --vocab-size 50000"
DATA += " --reset-position-ids --data-cache-path $CACHE"
WORDS = (
    "--lr 6.0e-5 --data-path 0.5 /data/a 0.5 /data/b --split 98,2,0 --tokenizer-type NullTokenizer --vocab-size 50000"
)
WORDS += " --reset-position-ids --data-cache-path FILL_IN --attention-dropout 0.1 --hidden-dropout 0.1"


def test_the_scripts_data_and_tokenizer_are_arguments_of_the_trainer(tmp_path):
    """A value that the script does not set is asked for, and so is the trainer's script."""
    (tmp_path / "x.sh").write_text(MEGATRON_LM.replace(GIVEN, DATA))
    text, _ = render_from(tmp_path / "x.sh")
    assert yaml.safe_load(text)["trainer"] == {"kind": "megatron-lm", "script": FILL_IN, "arguments": WORDS.split()}
    (tmp_path / "search.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        load_search_file(tmp_path / "search.yaml")
    keys = ["cluster.accelerator", "trainer.script", f"trainer.arguments[{WORDS.split().index(FILL_IN)}]"]
    assert [problem.key for problem in refused.value.problems] == keys


def test_sequence_parallelism_without_tensor_parallelism_is_kept_for_layouts_with_it(tmp_path):
    script = MEGATRON_LM.replace("TP=2", "TP=1")
    assert "--sequence-parallel" in script
    spec, _, text = started_from(tmp_path, "pretrain_gpt.sh", script)
    assert (spec.baseline.tensor_parallel, spec.baseline.sequence_parallel) == (1, False)
    assert yaml.safe_load(text)["space"]["sequence_parallel"] is True
    split = {layout.sequence_parallel for layout in candidates_of(spec).layouts if layout.tensor_parallel > 1}
    assert split == {True}


def test_a_deepspeed_config_alone_asks_for_the_model_and_loads_once_it_is_there(tmp_path):
    (tmp_path / "ds_config.json").write_text(DEEPSPEED)
    text, notes = render_from(tmp_path / "ds_config.json")
    assert "The file does not describe the model: fill in the model section." in notes
    with pytest.raises(InputError, match="num_layers: is 'FILL_IN'"):
        loaded(tmp_path, text)
    head, _, rest = text.partition("model:\n")
    rest = rest.replace("activation_checkpointing: FILL_IN", "activation_checkpointing: none")
    spec = loaded(tmp_path, head + "model: gpt2-tiny\n" + rest[rest.index("\n\n") :])
    assert (spec.global_batch_size, spec.baseline.zero_stage, spec.baseline.data_parallel) == (16, 1, 2)
    assert spec.baseline in candidates_of(spec).layouts


def test_tensor_parallel_ranks_of_a_deepspeed_config_are_part_of_the_node(tmp_path):
    config = json.loads(DEEPSPEED) | {"tensor_parallel": {"autotp_size": 4}}
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    assert "gpus_per_node: 8\n" in render_from(tmp_path / "ds_config.json")[0]


def test_what_is_run_today_is_among_the_values_of_every_axis(tmp_path):
    config = {
        "train_batch_size": 256,
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
        "bf16": {"enabled": True},
    }
    (tmp_path / "ds_config.json").write_text(json.dumps(config))
    assert "zero_stage: [0, 1, 2]" in render_from(tmp_path / "ds_config.json")[0]
    selective = MEGATRON_LM.replace("--recompute-granularity full", "--recompute-granularity selective")
    spec, _, text = started_from(tmp_path, "x.sh", selective)
    assert spec.baseline.activation_checkpointing == "selective"
    assert "activation_checkpointing: [none, full, selective]" in text


def test_a_layout_that_the_file_has_in_part_is_a_baseline_to_fill_in(tmp_path):
    (tmp_path / "llama.yaml").write_text(BRIDGE.replace("mixed_precision: bf16_mixed", ""))
    rendered, notes = render_from(tmp_path / "llama.yaml")
    search = yaml.safe_load(rendered)
    known = {"tensor_parallel": 2, "pipeline_parallel": 4, "micro_batch_size": 2, "zero_stage": 1}
    known |= {"activation_checkpointing": "selective", "sequence_parallel": True, "virtual_pipeline_stages": 2}
    known |= {"overlap_comm": True, "tensor_parallel_overlap": True}
    assert search["baseline"] == known | {"precision": FILL_IN, "matmul_precision": FILL_IN}
    missing = [field for field, value in search["baseline"].items() if value == FILL_IN]
    assert f"Fill in what the file lacks about the present layout: {', '.join(missing)}." in notes
    assert search["space"]["precision"] == FILL_IN
    assert re.search(r"#   baseline\.tensor_parallel +2\b", rendered)
    assert re.search(r"#   baseline\.precision +FILL_IN +unknown: fill it in\b", rendered)


def test_a_llama_like_model_is_one_that_our_engines_run(tmp_path):
    spec, notes, text = started_from(tmp_path, "config.json", HF_LLAMA)
    assert "  seq_length: FILL_IN\n" in text  # the model allows 8192; how long the training's are, the file has not
    assert spec.model.position_embedding == "rotary"
    assert not [note for note in notes if "cannot run" in note]
    assert {layout.precision for layout in candidates_of(spec).layouts} == {"bf16"}
    assert "  precision: bf16\n" in text
    assert (spec.baseline, spec.cluster.accelerator.name, spec.global_batch_size) == (None, "cpu", 32)
    assert any("four CPU ranks are assumed" in note for note in notes)


def test_a_model_our_engines_cannot_run_is_said_to_be_one(tmp_path):
    odd = json.loads(HF_LLAMA) | {"hidden_size": 32 * 127}
    _, notes, _ = started_from(tmp_path, "config.json", json.dumps(odd))
    assert "Engine torch cannot run this model: model.head_size is 127 with model.position_embedding rotary." in notes


UNIFORM = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4"


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("ds.json", DEEPSPEED.replace('"stage": 1', '"stage": 0'), "baseline.precision"),
        ("x.sh", MEGATRON_LM.replace("--recompute-granularity full", UNIFORM), "--recompute-num-layers"),
    ],
)
def test_a_layout_that_trials_would_change_is_refused_with_the_way_to_go_on(tmp_path, name, text, key):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as refused:
        render_from(tmp_path / name)
    (problem,) = refused.value.problems
    assert (problem.key, problem.file) == (key, str(tmp_path / name))
    assert problem.rule
    assert "in a copy of the file" in problem.fix


@pytest.mark.parametrize(
    "overrides",
    [
        "model.recompute_granularity=selective model.recompute_modules=[mlp]",
        "model.cuda_graph_impl=transformer_engine model.cuda_graph_scope=[attn,moe_router]",
        "optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=1.0",
        "model.expert_model_parallel_size=8",
    ],
)
def test_a_layout_that_suits_some_model_or_recipe_is_not_refused_where_these_are_not_known(tmp_path, overrides):
    (tmp_path / "x.sh").write_text(f"torchrun run_recipe.py --recipe moe_pretrain_config {overrides}")
    assert "  num_layers: FILL_IN\n" in render_from(tmp_path / "x.sh")[0]


def test_what_the_trainer_ignores_is_no_part_of_the_baseline(tmp_path):
    """DeepSpeed overlaps nothing with ZeRO 1 in bf16, whatever its configuration says."""
    (tmp_path / "ds.json").write_text(DEEPSPEED)
    text, notes = render_from(tmp_path / "ds.json")
    assert "overlap_comm" not in yaml.safe_load(text)["baseline"]
    assert [note for note in notes if note.startswith("overlap_comm has no effect in this layout")]


@pytest.mark.parametrize(
    ("known", "in_doubt", "keys"),
    [
        ("--micro-batch-size 2", "--micro-batch-size $MBS", {"baseline.micro_batch_size"}),
        (
            "--bf16",
            "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy $SHARD",
            {"baseline.zero_stage", "space.zero_stage"},
        ),
        ("--global-batch-size $((TP * 32))", "--global-batch-size $((2 * DP))", {"global_batch_size"}),
        (
            '--tensor-model-parallel-size "${TP}"',
            "--tensor-model-parallel-size $SIZE",
            {"model.vocab_size", "baseline.tensor_parallel"},
        ),
    ],
)
def test_a_value_that_the_script_does_not_set_is_asked_for_and_no_default_stands_for_it(
    tmp_path, known, in_doubt, keys
):
    assert known in MEGATRON_LM
    (tmp_path / "x.sh").write_text(MEGATRON_LM.replace(known, in_doubt))
    text, _ = render_from(tmp_path / "x.sh")
    with pytest.raises(InputError) as refused:
        loaded(tmp_path, text)
    assert {problem.key for problem in refused.value.problems if problem.value == FILL_IN} == keys


@pytest.mark.parametrize(
    ("name", "expected"), [("My Script_v2.sh", "my-script-v2"), ("---.sh", "search"), ("a" * 60, "a" * 41)]
)
def test_the_search_is_named_after_the_file(tmp_path, name, expected):
    assert started_from(tmp_path, name, MEGATRON_LM)[0].name == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not a JSON object"),
        (b"", "starts from a launch script, a Hugging Face config.json"),
        (b'{"a": ' * 5000, "more than 60 levels"),
        (b'{"model_type": "gpt2", "n_embd": NaN}', "NaN is not a number of at most"),
        (b'{"a": 1}', "neither a Hugging Face config.json nor GPT-NeoX"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"{" + b" " * 2**20, "larger than"),
    ],
)
def test_a_file_of_no_known_kind_is_refused_with_its_name(tmp_path, content, words):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=words) as error:
        render_from(tmp_path / "file")
    assert error.value.problems[0].file == str(tmp_path / "file")
    assert error.value.problems[0].rule or error.value.problems[0].fix


@pytest.mark.parametrize("site", ["lumi", "./our site.toml"])
def test_a_search_for_a_site_names_it_and_is_one_on_slurm(tmp_path, site):
    (tmp_path / "our site.toml").write_text('title = "Ours"\nsources = []\n[slurm]\npartition = "gpu"\n')
    spec = loaded(tmp_path, render_example(site))
    assert spec.launcher.kind == "slurm"
    assert spec.launcher.slurm.partition in ("standard-g", "gpu")
    (tmp_path / "x.sh").write_text(MEGATRON_LM)
    text, _ = render_from(tmp_path / "x.sh", site)
    assert loaded(tmp_path, text).launcher == spec.launcher


def test_a_yaml_that_is_no_trainers_says_what_it_is(tmp_path):
    (tmp_path / "s.yaml").write_text("name: mine\nspace: {}\n")
    with pytest.raises(InputError, match="this is a search file: use it directly"):
        render_from(tmp_path / "s.yaml")


def test_each_value_with_an_origin_has_a_row_and_one_to_fill_in_says_so():
    values = {"model.num_layers": 24, "model.vocab_size": FILL_IN, "model.gated_mlp": True, "model.norm": "rmsnorm"}
    origins = {
        "model.num_layers": "--num-layers (line 3)",
        "model.gated_mlp": "--swiglu (line 4)",
        "model.vocab_size": "the trainer's default",
    }
    assert origin_lines(values, origins) == [
        "key               value    read from",
        "model.num_layers  24       --num-layers (line 3)",
        "model.vocab_size  FILL_IN  unknown: fill it in",
        "model.gated_mlp   true     --swiglu (line 4)",
    ]


def test_a_long_origin_goes_on_below_itself():
    origin = ", ".join(f"--option-{number} (line {number})" for number in range(8))
    first, *rest = origin_lines({"key": 1}, {"key": origin})[1:]
    column = first.index("--option-0")
    assert rest
    assert all(line[:column].isspace() for line in rest)
    assert " ".join(line[column:] for line in [first, *rest]) == origin
