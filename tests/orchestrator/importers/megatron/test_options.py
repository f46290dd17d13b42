"""Every option of Megatron's two parsers has one handling, and the reader keeps it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.importers import reasons
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.launcher_options import LAUNCHER_GROUPS
from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.option_table import Handling, OptionTable
from search_spaces.errors import InputError
from tests.orchestrator.importers.config_tables import keys_with, require_one_handling_of_each_key
from trials.trainers.common.megatron_options import unsupported_option_reason

TABLES = pytest.mark.parametrize(
    ("table", "start"),
    [
        (MEGATRON_LM_OPTIONS.with_groups(LAUNCHER_GROUPS), ""),
        (MEGATRON_DEEPSPEED_OPTIONS.with_groups(LAUNCHER_GROUPS), "--deepspeed"),
    ],
    ids=["megatron-lm", "megatron-deepspeed"],
)


def given(table: OptionTable, name: str) -> str:
    """The option with a value, where it has one, that is not neutral."""
    return f"--{name}" if name in table.flags else f"--{name} 3"


def read(start: str, options: str) -> ImportedConfig:
    return read_launch_script(f"torchrun pretrain_gpt.py --hidden-size 256 --micro-batch-size 1 {start} {options}")


@TABLES
def test_every_option_is_in_one_group_and_what_has_no_effect_changes_nothing_of_what_is_read(table, start):
    require_one_handling_of_each_key(table)
    useless = " ".join(given(table, name) for name in keys_with(table, Handling.NO_EFFECT))
    assert replace(read(start, useless), arguments=()) == replace(read(start, ""), arguments=())


@TABLES
def test_a_refused_option_is_refused_and_a_noted_one_noted_or_kept_for_the_trainer(table, start):
    for name in keys_with(table, Handling.REFUSED):
        with pytest.raises(InputError) as refused:
            read(start, given(table, name))
        assert [problem.key for problem in refused.value.problems] == [f"--{name}"]
    noted = keys_with(table, Handling.NOTED)
    found = read(start, " ".join(given(table, name) for name in noted))
    left_out = {name for name in noted if any(note.startswith(f"--{name} was left out: ") for note in found.notes)}
    assert left_out == {*noted} - {word.removeprefix("--") for word in found.arguments}
    reasons_of = {table.group_of[name].reason for name in left_out if unsupported_option_reason(name) is None}
    assert reasons_of <= {reasons.WATCHED}
