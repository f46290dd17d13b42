"""Every option of Megatron's two parsers has one handling, and the reader keeps it."""

from __future__ import annotations

import pytest

from orchestrator.importers.command_options import CommandOptions
from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.megatron.script import read_megatron_script
from orchestrator.importers.option_table import Handling, OptionTable
from search_spaces.errors import InputError

TABLES = pytest.mark.parametrize(
    ("table", "start"),
    [(MEGATRON_LM_OPTIONS, ""), (MEGATRON_DEEPSPEED_OPTIONS, "--deepspeed")],
    ids=["megatron-lm", "megatron-deepspeed"],
)


def given(table: OptionTable, name: str) -> str:
    """The option with a value, where it has one, that is not neutral."""
    return f"--{name}" if name in table.flags else f"--{name} 3"


def options_with(table: OptionTable, handling: Handling) -> list[str]:
    return [name for name, group in table.group_of.items() if group.handling is handling]


def script(start: str, options: str) -> str:
    return f"torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --hidden-size 256 {start} {options}"


@TABLES
def test_every_option_is_in_one_group_and_every_neutral_value_is_that_of_an_option(table, start):
    words = [word.rstrip("=") for group in table.groups for word in group.names.split()]
    assert len(words) == len(table.group_of)
    assert table.neutral.keys() <= table.group_of.keys()
    assert all(group.reason for group in table.groups if group.handling is not Handling.READ)


@TABLES
def test_every_option_that_is_read_is_asked_for(table, start, monkeypatch):
    asked: set[str] = set()
    for method in (CommandOptions.has, CommandOptions.text, CommandOptions.count):

        def recording(options, *names, method=method):
            asked.update(names)
            return method(options, *names)

        monkeypatch.setattr(CommandOptions, method.__name__, recording)
    for options in ("--bf16", "--zero-stage 1", "--use-megatron-fsdp", "--group-query-attention", "--kv-channels 64"):
        read_megatron_script(script(start, f"{options} --tokenizer-type GPT2BPETokenizer"))
    for options in ("--recompute-modules core_attn", "--recompute-method block", "--optimizer-offload-fraction 1.0"):
        read_megatron_script(script(start, options))
    chooses_the_table = {"deepspeed"}
    assert {*options_with(table, Handling.READ)} - chooses_the_table <= asked


@TABLES
def test_a_refused_option_is_refused_and_a_noted_one_noted(table, start):
    for name in options_with(table, Handling.REFUSED):
        with pytest.raises(InputError) as refused:
            read_megatron_script(script(start, given(table, name)))
        assert [problem.key for problem in refused.value.problems] == [f"--{name}"]
    noted = options_with(table, Handling.NOTED)
    notes = read_megatron_script(script(start, " ".join(given(table, name) for name in noted))).notes
    assert [name for name in noted if not any(note.startswith(f"--{name} was left out: ") for note in notes)] == []


@TABLES
def test_what_has_no_effect_changes_nothing_of_what_is_read(table, start):
    useless = " ".join(given(table, name) for name in options_with(table, Handling.NO_EFFECT))
    assert read_megatron_script(script(start, useless)) == read_megatron_script(script(start, ""))
