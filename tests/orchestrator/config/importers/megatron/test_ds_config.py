"""The file that is a command's DeepSpeed configuration, and what is asked for where its text is not known."""

from __future__ import annotations

import json

import pytest

from orchestrator.config.importers.launch_script import read_launch_script

DECIDED = ("zero_stage", "offload", "overlap_comm", "bucket_mib")
COMMAND = (
    "deepspeed --num_gpus 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 128"
    " --micro-batch-size 1 --global-batch-size 128 --bf16 --deepspeed"
)


def config(stage: int | str) -> str:
    batch = {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 1}
    text = json.dumps({**batch, "zero_optimization": {"stage": "S"}, "bf16": {"enabled": True}})
    return text.replace('"S"', str(stage))


def written(name: str, stage: int | str) -> str:
    return f"cat > {name} <<EOF\n{config(stage)}\nEOF\n"


def imported(script: str, path: str | None, beside: dict[str, str] | None = None):
    named = "" if path is None else f" --deepspeed_config {path}"
    return read_launch_script(f"{script}\n{COMMAND}{named}\n", (beside or {}).__getitem__)


@pytest.mark.parametrize(
    ("script", "path", "stage"),
    [
        (written("eval.json", 3) + written("x.json", 1), "./x.json", 1),
        (written("a.json", 3), "$PWD/a.json", 3),
        (written("$DIR/a.json", 1) + written("b.json", 3), "$DIR/a.json", 1),
    ],
)
def test_deepspeed_opens_exactly_the_file_that_it_is_told(script, path, stage):
    found = imported(script, path, {"real.json": config(2)})
    assert found.layout["zero_stage"] == stage
    assert found.in_doubt == ()


@pytest.mark.parametrize(
    "script",
    [
        written("base.json", 1) + "jq '.zero_optimization.stage=2' base.json > ds.json",
        "if [ -f /x ]; then\n" + written("ds.json", 1) + "else\n" + written("ds.json", 2) + "fi",
        written("a.json", 1) + "cp a.json ds.json",
        written("ds.json", 1) + written("ds.json", 3),
        written("a.json", 1) + "cat a.json > ds.json",
        "cat <<EOF | sed s/a/b/ > ds.json\na\nEOF",
        "[ -f x ] || " + written("ds.json", 1),
        "gen() {\n" + written("$1", "$2") + "}\ngen ds.json 1",
        written("ds.json", "STAGE"),
        written("ds.json", "$STAGE"),
        'python - <<EOF\nimport json\njson.dump({"train_batch_size": 8}, open("ds.json", "w"))\nEOF',
    ],
)
def test_what_a_file_decides_whose_text_is_not_known_is_asked_for(script):
    found = imported(script, "ds.json", {"ds.json": config(3)})
    assert found.in_doubt == DECIDED
    assert not {*DECIDED} & found.layout.keys()
    (note,) = [note for note in found.notes if note.endswith("values that only it has are asked for.")]
    assert "ds.json" in note


def test_the_config_is_asked_for_where_its_name_or_text_is_not_known_and_a_default_noted():
    script = COMMAND.replace("--global-batch-size 128 ", "") + " --zero-stage 1 --deepspeed_config ds.json"
    found = read_launch_script(script)
    assert found.in_doubt == ("global_batch_size", "offload", "overlap_comm", "bucket_mib")
    assert found.global_batch_size is None
    assert "ds.json behind --deepspeed-config was not read: values that only it has are asked for." in found.notes
    found = imported(written("a.json", 1), "$CONFIG")
    assert found.layout["zero_stage"] == 1
    assert "a.json is taken for the DeepSpeed config, whose name is not known." in found.notes
    found = imported(written("a.json", 1) + written("b.json", 1), "$CONFIG")
    assert found.in_doubt == DECIDED
    found = imported(written("a.json", "${STAGE:-1}"), "a.json")
    assert found.layout["zero_stage"] == 1
    assert "STAGE is taken as its default 1; the environment may set another." in found.notes
    assert imported("", None).in_doubt == ()
    assert imported(written("a.json", '"auto"'), "a.json").in_doubt == ("zero_stage", "overlap_comm")
