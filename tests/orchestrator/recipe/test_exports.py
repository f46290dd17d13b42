from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import yaml

from orchestrator.recipe.exports import TITLES, ExportStatus, exports
from search_spaces.adapters import Adapters
from tests.orchestrator.recipe.exported import NOT_OURS, exported, half, lines_of, our_spec
from tests.trials.trainers.specs import GPT2, LLAMA, spec_of

COMMAND = {"template": "{python} train.py --tp {tensor_parallel} {zero_stage=1:--shard}", "patterns": "deepspeed"}
OFFLOADED = {"zero_stage": 1, "offload": "optimizer"}


@pytest.mark.parametrize(
    ("trainer", "file", "change", "come"),
    [
        (
            *("megatron-bridge", "nemo_overrides.txt", OFFLOADED),
            "ddp.use_distributed_optimizer=true optimizer.use_distributed_optimizer=true"
            " optimizer.optimizer_cpu_offload=true optimizer.optimizer_offload_fraction=1.0"
            " optimizer.use_precision_aware_optimizer=true",
        ),
        (
            *("megatron-bridge", "nemo_overrides.txt", {"pipeline_parallel": 2, "virtual_pipeline_stages": 2}),
            "model.pipeline_model_parallel_size=2 model.virtual_pipeline_model_parallel_size=2"
            " model.overlap_p2p_comm=true model.batch_p2p_comm=false",
        ),
    ],
)
def test_a_field_brings_what_its_trainer_needs_with_it(trainer, file, change, come):
    before, after = (lines_of(trainer, file, tensor_parallel=2, **fields) for fields in ({}, change))
    assert " ".join(line for line in after if line not in before) == come


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"zero_stage": 2}, True),
        ({"zero_stage": 3, "precision": "fp32", "attention_kernel": "math"}, False),
        ({"zero_stage": 1}, False),
    ],
)
def test_a_newer_megatron_fsdp_needs_an_option_that_older_parsers_refuse(fields, is_told):
    """It sums half-precision gradients in the weights' dtype by default; core_v0.16.1 takes none but fp32."""
    text = exported(our_spec(half(**fields), LLAMA))["megatron-lm"].files["megatron_args.txt"]
    advice = [line for line in text.splitlines() if "--megatron-fsdp-main-grads-dtype fp32" in line]
    assert len(advice) == is_told
    assert all(line.startswith("# Megatron-LM from core_v0.17.0 on also needs ") for line in advice)


def test_adapters_are_told_to_a_script_of_accelerate_and_refused_by_trainers_without_any():
    model = replace(LLAMA, adapters=Adapters(4, alpha=8, target_modules=("q_proj", "v_proj")), trainable=())
    made = exported(our_spec(half(), model))
    told = [line for line in made["accelerate"].files["accelerate.yaml"].splitlines() if "adapters" in line]
    assert told == ["# It makes the adapters, too: rank 4, kind lora, alpha 8, target_modules q_proj, v_proj."]
    assert str(made["nemo-automodel"].rule) == "nemo-automodel.zero_stage"
    assert {name for name, export in made.items() if export.status is not ExportStatus.REFUSED} == {"accelerate"}
    assert made["megatron-bridge"].rule == "megatron-bridge.adapters_names"
    assert {str(made[name].rule) for name in ("deepspeed", "nanotron")} == {"deepspeed.adapters", "nanotron.adapters"}


def test_what_a_recipe_of_megatron_bridge_overlaps_by_itself_is_switched_off():
    lines = lines_of("megatron-bridge", "nemo_overrides.txt")
    off = {"comm_overlap=null", "model.tp_comm_overlap=false", "ddp.overlap_param_gather=false"}
    off |= {"ddp.overlap_grad_reduce=false", "ddp.bucket_size=null", "model.context_parallel_size=1"}
    assert off <= {*lines}


@pytest.mark.parametrize("trainer", ["megatron-deepspeed", "gpt-neox"])
@pytest.mark.parametrize(
    ("precision", "zero_stage", "is_fp32"),
    [("bf16", 1, True), ("bf16", 0, False), ("fp16", 1, False), ("fp16", 0, False)],
)
def test_deepspeed_sums_bf16_gradients_in_fp32_where_it_can_as_the_memory_model_has_it(
    trainer, precision, zero_stage, is_fp32
):
    """DeepSpeed refuses fp32 accumulation of 16-bit gradients without ZeRO, and accumulates fp16 in fp16 by default."""
    layout = half(data_parallel=2, grad_accum_steps=4, zero_stage=zero_stage, precision=precision)
    made = exported(our_spec(layout, GPT2))[trainer]
    config = yaml.safe_load(next(text for name, text in made.files.items() if "args" not in name))
    assert config.get("data_types") == ({"grad_accum_dtype": "fp32"} if is_fp32 else None)


@pytest.mark.parametrize(
    ("trainer", "multiple"),
    [
        ("megatron-lm", r"--make-vocab-size-divisible-by (\d+)"),
        ("megatron-deepspeed", r"--make-vocab-size-divisible-by (\d+)"),
        ("gpt-neox", r'"make_vocab_size_divisible_by": (\d+)'),
    ],
)
@pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
def test_a_smaller_tokenizer_is_padded_to_the_models_vocabulary_at_every_tensor_degree(
    trainer, multiple, tensor_parallel
):
    """By default they pad to 128 x the tensor degree: 50,257 tokens become 50,304 on one rank and 50,688 on four."""
    made = exported(our_spec(half(tensor_parallel=tensor_parallel), replace(GPT2, vocab_size=50_304)))[trainer]
    (number,) = re.findall(multiple, "".join(made.files.values()))
    assert math.ceil(50_257 / (int(number) * tensor_parallel)) * int(number) * tensor_parallel == 50_304


@pytest.mark.parametrize(("layers", "is_local"), [("local", True), ("transformer_engine", False), (None, False)])
def test_megatron_lm_is_told_of_local_layers_that_were_measured(layers, is_local):
    spec = our_spec(half(engine="megatron-core", attention_kernel="math"), LLAMA)
    made = exports(spec, "python", {"megatron_layers": layers})
    [text] = [export.files["megatron_args.txt"] for export in made if export.trainer == "megatron-lm"]
    advice = "# Where Apex is not installed, add --no-gradient-accumulation-fusion"
    told = ["--transformer-impl local", "--no-rope-fusion", "--no-persist-layer-norm", advice]
    assert [line for line in text.splitlines() if line in told] == (told if is_local else [])


# -- who measured it


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("megatron-lm", "megatron_args.txt"),
        ("megatron-deepspeed", "megatron_deepspeed_args.txt"),
        ("gpt-neox", "gpt_neox.yml"),
        ("nanotron", "nanotron.yaml"),
    ],
)
def test_a_foreign_trainers_own_export_is_measured_and_the_others_are_not(kind, file):
    spec = replace(spec_of(kind, LLAMA, trainer={"template": {"data_path": "/data"}}), accelerator="a100-80gb")
    made = exported(spec)
    measured = {name for name, export in made.items() if export.status is ExportStatus.MEASURED}
    assert measured - {"command"} == {kind}
    assert ", measured with this trainer.\n" in made[kind].files[file]
    emulated = exported(replace(spec, accelerator="cpu"))[kind].files[file]
    assert ", measured with this trainer on an emulated device.\n" in emulated
    for name in set(NOT_OURS) - {kind, "megatron-bridge"}:
        texts = [text for n, text in made[name].files.items() if not n.endswith(".json")]
        assert all(", not measured with this trainer.\n" in text for text in texts)


@pytest.mark.parametrize(
    "spec",
    [
        our_spec(half(zero_stage=1, engine="deepspeed"), LLAMA),
        spec_of("nanotron", LLAMA, trainer={"template": {}}),
        spec_of("command", trainer=COMMAND),
    ],
)
def test_of_a_replayed_table_no_trainer_has_measured_the_layout(spec):
    made = exports(spec, "python", has_run=False)
    assert ExportStatus.MEASURED not in {export.status for export in made}
    assert not any("# Measured with" in text for export in made for text in export.files.values())


@pytest.mark.parametrize(
    ("engine", "measured"),
    [("torch", []), ("deepspeed", ["deepspeed"]), ("megatron-core", []), ("torchtitan", ["torchtitan"])],
)
def test_what_an_engine_measured_is_said_of_the_trainer_that_it_is_which_comes_first(engine, measured):
    made = exports(our_spec(half(engine=engine, zero_stage=int(engine == "deepspeed")), LLAMA), "python")
    assert [export.trainer for export in made if export.status is ExportStatus.MEASURED] == measured
    assert measured in ([], [made[0].trainer])


def test_the_users_template_arguments_and_script_stay_as_a_shell_takes_them():
    neox = exported(spec_of("gpt-neox", trainer={"template": {"data-path": "/data", "train-iters": 9, "save": "/ck"}}))
    config = yaml.safe_load(neox["gpt-neox"].files["gpt_neox.yml"])
    assert (config["data_path"], config["train_iters"], config["save"]) == ("/data", 9, "/ck")
    assert neox["gpt-neox"].unrun_start == "python deepy.py /opt/pretrain_gpt.py recipe/gpt_neox.yml"
    megatron = exported(spec_of("megatron-lm", trainer={"arguments": ["--data-path", "/my data/c4"]}))["megatron-lm"]
    assert "--data-path" not in megatron.files["megatron_args.txt"].replace(str(megatron.unrun_start), "")
    assert str(megatron.unrun_start).endswith(
        "/opt/pretrain_gpt.py $(grep -v '^#' recipe/megatron_args.txt) --data-path '/my data/c4' YOUR_OPTIONS"
    )
    searched = exported(spec_of("megatron-lm", LLAMA, settings="options.--x=4"))
    assert str(searched["megatron-lm"].unrun_start).endswith(" --x=4 YOUR_OPTIONS")
    assert "# megatron-lm also had --x=4.\n" in searched["torchtitan"].files["torchtitan_config.py"]
    command = exported(spec_of("command", zero_stage=1, trainer=COMMAND))["command"]
    assert command.files["command.txt"] == "/env/bin/python train.py \\\n    --tp 1 \\\n    --shard\n"
    assert command.unrun_start == "torchrun --standalone --nproc-per-node 2 --no-python sh recipe/command.txt"
    assert command.status is ExportStatus.MEASURED


def test_what_only_a_table_answered_for_has_no_words_and_every_trainer_a_name():
    made = exported(spec_of("nanotron", trainer={"template": {}}))  # a GPT-2 shape
    assert made["nanotron"].status is ExportStatus.REFUSED
    assert "command" not in made
    made = exports(spec_of("command", trainer=COMMAND), "python")
    assert {export.trainer for export in made} == set(TITLES)


@pytest.mark.bad_input(50)
def test_a_line_break_in_a_path_ends_no_comment():
    spec = spec_of("nanotron", LLAMA, trainer={"template": {"a": 1}, "script": "/opt/a\nevil: true #"})
    made = exported(spec)["nanotron"]
    assert "evil" not in yaml.safe_load(made.files["nanotron.yaml"])
    assert "\n" not in str(made.unrun_start)


def test_every_start_line_has_its_nodes_and_the_variables_of_the_trial():
    layout = replace(half(data_parallel=4, tensor_parallel=2, zero_stage=1), num_nodes=2)
    made = exported(our_spec(layout, LLAMA))
    torchrun = (
        'CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nnodes 2 --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"'
        " --master-port 29500 --nproc-per-node 4 "
    )
    for trainer in ("megatron-lm", "megatron-deepspeed", "megatron-bridge", "nanotron"):
        assert str(made[trainer].unrun_start).startswith(torchrun)
    assert str(made["deepspeed"].unrun_start).startswith("deepspeed --num_nodes 2 --num_gpus 4 ")
    settings = "-env.NCCL_ALGO 'env.NCCL_NET=a b' env.OMP_NUM_THREADS=2 launch.cpu_bind=cores"
    layouts = (half(settings=settings, zero_stage=stage) for stage in (2, 0, 1))
    made = [exported(our_spec(layout, LLAMA)) for layout in layouts]
    starts = {
        name: export.unrun_start for each in made for name, export in each.items() if export.unrun_start is not None
    }
    assert {*NOT_OURS, "deepspeed"} == {*starts}
    for trainer, start in starts.items():
        assert "NCCL_NET='a b' OMP_NUM_THREADS=2 env -u NCCL_ALGO " in start, trainer
