from __future__ import annotations

import shlex

import pytest

from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.init import render_from
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from search_spaces.schema.validation import FILL_IN
from tests.orchestrator.config.importers.samples import CORPUS

FLAGS = "--model_name_or_path a --per_device_train_batch_size 2 --bf16"


def started(options: str, start: str = "torchrun --nproc_per_node 2 train.py"):
    return read_launch_script(f"{start} {FLAGS} {options}")


@pytest.mark.parametrize(
    ("options", "adapters"),
    [
        ("--lora_r 8 --load_in_4bit", {}),
        ("--use_peft False --lora_r 8", {}),
        ("--use_peft", {"kind": "lora", "rank": 16, "alpha": 32}),
        (
            "--use_peft --lora_r 8 --lora_target_modules c_attn",
            {"kind": "lora", "rank": 8, "alpha": 32, "target_modules": ["c_attn"]},
        ),
        ("--use_peft --lora_r $RANK", {"kind": "lora", "alpha": 32}),
    ],
)
def test_a_script_has_the_adapters_that_trl_makes_of_its_options(options, adapters):
    found = started(options)
    assert (dict(found.adapters), found.finetunes) == (adapters, True)


@pytest.mark.parametrize(
    ("options", "key", "rule"),
    [
        ("--deepspeed ds.json", "--deepspeed", "accelerate's configuration, by --config_file"),
        ("--use_peft --use_dora", "--use-dora", "adapters are LoRA's"),
        ("--use_peft --load_in_8bit", "--load-in-8bit", "beside weights in 16 or 4 bits"),
        ("--use_peft --lora_modules_to_save lm_head", "--lora-modules-to-save", "train beside adapters"),
        ("--use_peft --lora_target_modules query_key_value", "--lora-target-modules", "beside linear modules"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(options, key, rule):
    with pytest.raises(InputError, match=rule) as refused:
        started(options)
    (problem,) = refused.value.problems
    assert (problem.key, bool(problem.fix)) == (key, True)


@pytest.mark.parametrize(
    "start",
    ["trl sft", "accelerate launch --num_processes 2 -m trl.scripts.sft", "python -m torch.distributed.run a.py"],
)
def test_the_scripts_own_options_are_arguments_with_what_a_trial_decides_in_its_place(start):
    found = started("--max_steps=99 --output_dir o --lora_r 8 --template '{x}'", start)
    assert shlex.join(found.arguments) == shlex.join(
        [
            *("--model_name_or_path", "a", "--per_device_train_batch_size", "{micro_batch_size}", "--bf16"),
            *("--max_steps", "{train_iterations}", "--output_dir", "{attempt_folder}", "--lora_r", "8"),
            *("--template", "{{x}}", "--gradient_accumulation_steps", "{grad_accum_steps}"),
        ]
    )


def test_the_search_of_a_script_loads_with_its_adapters_and_can_be_planned(tmp_path):
    text, _ = render_from(CORPUS / "trl_qlora.sh")
    head, _, rest = text.partition("model:\n")
    text = f"{head}model: llama-3.1-8b\n\n{rest[rest.index('# What trains') :]}"
    text = text.replace(f"accelerator: {FILL_IN}", "accelerator: a100-80gb").replace(
        f"patterns: {FILL_IN}", "patterns: {step_time_s: 'took (.+) s'}"
    )
    (tmp_path / "search.yaml").write_text(text.replace(FILL_IN, "/shared/train_sft.py"), encoding="utf-8")
    spec = load_search_file(tmp_path / "search.yaml")
    space = candidates_of(spec)
    assert space.baseline in space.layouts
    assert str(spec.model.adapters) == "qlora of rank 16"
