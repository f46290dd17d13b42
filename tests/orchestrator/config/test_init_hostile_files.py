"""Files made to break the import: each ends in a search file or an InputError that names the mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.init import render_from
from search_spaces.errors import InputError
from search_spaces.schema.unsafe_text import is_printable
from search_spaces.schema.yaml_document import parse_document

NEOX = """\
num_layers: 4
hidden_size: 256
num_attention_heads: 4
seq_length: 128
train_micro_batch_size_per_gpu: 4
pipe_parallel_size: 1
"""
NANOTRON = """\
parallelism: {tp: 1, pp: 1, dp: 2}
tokens: {micro_batch_size: 2, sequence_length: 128, batch_accumulation_per_replica: 1}
general: {}
"""
ACCELERATE = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {deepspeed_config_file: %s}\n"
BUCKET = NEOX + "zero_optimization: {stage: 1, reduce_bucket_size: %s}\n"
HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n"
RUN = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 12 --hidden-size 512"
    " --num-attention-heads 8 --seq-length 1024 --micro-batch-size 4 --global-batch-size 64 --bf16 --vocab-size 50000"
)
BRIDGE = "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b model.tensor_model_parallel_size=2"
TITAN = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b"
MODULE = "VALUES = {'training': {'steps': %s}}\n"


def started_from(folder: Path, name: str, text: str) -> tuple[str, list[str]]:
    (folder / name).write_text(text)
    return render_from(folder / name)


def ending(text: str) -> str:
    """A case's name."""
    return text[-30:]


@pytest.mark.parametrize("value", ["5", "true", "1.5", '"x"', '{"a": 1}', "[[1]]", "[null]"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"model_type": "llama", "architectures": %s}'),
        ("a.json", '{"train_batch_size": 8, "compile": {"passes": %s}}'),
        ("a.yaml", NANOTRON + "data_stages: [{sequence_length: %s}]\n"),
    ],
)
def test_a_value_of_another_kind_breaks_no_reader(tmp_path, name, text, value):
    assert started_from(tmp_path, name, text % value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        *(("a.yaml", NEOX + f"expansion_factor: {n}\n", "number above 0") for n in (".nan", "1e400")),
        *(("a.yaml", BUCKET % n, "elements above 0") for n in (".inf", "-4", "true")),
        ("a.yaml", NEOX + "num-layers: 9\n", "second time, as num_layers"),
        ("a.yaml", ACCELERATE % ("a" * 300), "File name too long"),
        ("a.yaml", ACCELERATE % "/dev/zero", "not a regular file"),
        ("a.yaml", ACCELERATE % "link.json", "leads out"),
        ("a.py", MODULE % ("(" * 5_000 + ")" * 5_000), "has no literal VALUES"),
        ("a.py", MODULE % ("-" * 90_000 + "1"), "has no literal VALUES"),
        ("a.py", "def f():\n    return f()\n", "has no literal VALUES"),
        ("a.sh", HEAD + RUN + " \0 --num-layers 24\n", "NUL"),
        ("a.sh", HEAD + RUN.replace("12", "1\N{FULLWIDTH DIGIT TWO}") + "\n", "whole number"),
        ("a.json", "{" + ",".join(f'"k{i}":1' for i in range(80_000)) + ',"k79999":1}', "'k79999' appears twice"),
        ("a.yaml", "".join(f"%TAG !a{i}! x\n" for i in range(50_000)) + "---\na: 1\n", "%TAG"),
        ("a.yaml", NEOX + "attention_config: [" + "1," * 400_000 + "]\n", "more than 50000 values"),
    ],
    ids=ending,
)
def test_a_value_or_file_that_cannot_be_is_refused(tmp_path, name, text, words):
    (tmp_path / "link.json").symlink_to("/etc/hostname")
    with pytest.raises(InputError) as refused:
        started_from(tmp_path, name, text)
    assert words in str(refused.value)


def test_a_link_out_of_the_folder_is_not_sourced(tmp_path):
    (tmp_path / "rc").write_text("TP=2\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "env.sh").symlink_to(tmp_path / "rc")
    text, notes = started_from(tmp_path / "a", "a.sh", f"source env.sh\n{RUN} --tensor-model-parallel-size $TP\n")
    assert "env.sh was not read; what it sets is missing." in notes
    assert "tensor_parallel: FILL_IN" in text


def test_only_a_line_break_begins_a_directive(tmp_path):
    text, _ = started_from(
        tmp_path, "a.sh", f"#!/bin/bash\n# a\u2028#SBATCH --account=b\n# a\x0c#SBATCH --qos=c\n{RUN}"
    )
    assert "slurm" not in text.partition("launcher:")[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        RUN.replace("pretrain_gpt.py", "train_gpt" * 25_000 + "!.py"),
        RUN + " --hidden-dropout " + "0" * 200_000 + "x",
        'export NCCL_X="://' + ":" * 200_000 + '"\n' + RUN,
        TITAN + " --training.disable_cuda_graphs " + " ".join(f"--metrics.opt{i} 1" for i in range(8_000)),
        RUN + " " + " ".join(f"--tensor-model-opt-{i}" for i in range(8_000)),
        "module load " + " ".join(f"m{i}" for i in range(20_000)) + "\nmodule unload "
        + " ".join(f"m{i}" for i in range(10_000)) + "\n" + RUN,
        "#SBATCH --nodelist=" + "," * 220_000 + "\n" + RUN,
    ],
    ids=ending,
)  # fmt: skip
def test_a_long_word_or_list_is_read_in_time_proportional_to_it(tmp_path, line):
    assert started_from(tmp_path, "a.sh", HEAD + line + "\n")


TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUv"
HIDDEN = "WORDWORDWORD"


@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", f"{HEAD}{RUN} --wandb-project ${{X:-{TOKEN}}} --data-path ${{WANDB_API_KEY:-{HIDDEN}}}"),
        ("a.sh", f'{HEAD}source "$(curl -u user:{HIDDEN} https://x)"\n. https://user:{HIDDEN}@x/env\n{RUN}'),
        ("a.sh", f"{HEAD}apptainer exec docker://user:{HIDDEN}@reg.io/img:1 {RUN}"),
        ("a.sh", f"{HEAD}module load {TOKEN}\n{RUN}"),
        ("a.sh", f"{HEAD}{RUN} --micro-batch-size $(vault read -token={TOKEN} size)"),
        ("a.sh", f"{HEAD}PASSWORD={HIDDEN}\n{RUN} --num-layers $PASSWORD"),
        ("a.sh", f"{HEAD}A=12 # change this: {'x' * 30} {TOKEN}\n{RUN} --num-layers $A"),
        ("a.sh", f"{HEAD}{TITAN} --training.seq_len {TOKEN}"),
        ("a.py", (MODULE % f"'{TOKEN}'").replace("steps", "seq_len")),
        ("a.json", f'{{"train_batch_size": 8, "optimizer": {{"type": "{TOKEN}"}}}}'),
    ],
    ids=ending,
)
def test_no_secret_gets_into_the_search_file_a_note_or_an_error(tmp_path, name, text):
    try:
        made, notes = started_from(tmp_path, name, text)
    except InputError as error:
        told = str([problem.to_json() for problem in error.problems])
    else:
        parse_document(made.encode(), None, tmp_path)
        told = made + "".join(notes)
    assert HIDDEN not in told
    assert TOKEN[:9] not in told


@pytest.mark.bad_input(50)
@pytest.mark.parametrize("sign", ["\x1b[31m", "\u2028", "\x85"])
def test_origins_and_the_files_name_have_no_character_that_a_terminal_acts_on(tmp_path, sign):
    recipe = BRIDGE.replace("llama3_8b", f"'x{sign}evil: 1{sign}#_bf16_config'") + LAYOUT_OF_BRIDGE
    for name, text in ((f"a{sign}.sh", HEAD + RUN), ("a.sh", HEAD + recipe)):
        made, notes = started_from(tmp_path, name, text)
        assert all(map(is_printable, [*made.split("\n"), *notes]))


LAYOUT_OF_BRIDGE = (
    " model.pipeline_model_parallel_size=1 train.micro_batch_size=2 train.global_batch_size=64"
    " ddp.use_distributed_optimizer=true optimizer.optimizer_cpu_offload=false model.recompute_granularity=null"
    " model.sequence_parallel=false model.virtual_pipeline_model_parallel_size=null model.attention_backend=flash"
    " dist.use_tp_pp_dp_mapping=false ddp.overlap_grad_reduce=true ddp.bucket_size=null\n"
)
