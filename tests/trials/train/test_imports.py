"""Everything is imported before the ranks meet: real ranks, each a fresh process.

Left out, since they have reasons to import late: torch.compile, whose compiler imports as it compiles (its time is
booked as that), and the profile, which comes after the measurement and would add to the memory that this sees.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import faulty, make_spec
from trials.ranks.startup import StartupPart

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
DP2 = replace(ONE, data_parallel=2)
PP2 = replace(ONE, pipeline_parallel=2, activation_checkpointing="full")
CASES = {
    "torch": (ONE, False),
    "torch-pipeline": (PP2, True),
    "torch-zero-3": (replace(DP2, zero_stage=3), True),
    "deepspeed-pipeline": (replace(PP2, engine="deepspeed"), True),
    "deepspeed-zero-1": (replace(DP2, engine="deepspeed", zero_stage=1), False),
    "deepspeed-zero-3": (replace(DP2, engine="deepspeed", zero_stage=3, offload="optimizer"), False),
}
"""A layout, and whether torch needs its compiler for it."""


IN_EACH_RUN = ("torch-zero-3", "deepspeed-zero-3")


@pytest.mark.parametrize(
    "name", [name if name in IN_EACH_RUN else pytest.param(name, marks=pytest.mark.walks) for name in CASES]
)
def test_nothing_of_torch_or_deepspeed_is_imported_once_the_ranks_meet(start, name):
    layout, has_compiler = CASES[name]
    trial = start(make_spec(layout), program=faulty("note_late_imports"), warm=None)
    assert set(trial.wait()) == {0}, trial.logs()
    for rank in range(layout.num_gpus):
        found = json.loads((trial.folder.path / f"imports-{rank}.json").read_text())
        assert found == {"late": [], "has_compiler": has_compiler, "has_mlflow": False}
    measured = trial.outcome().measured
    assert list(measured.startup_parts_s) == [part for part in StartupPart if part is not StartupPart.COMPILE]
    assert measured.startup_s == pytest.approx(sum(measured.startup_parts_s.values()))
    assert min(measured.startup_parts_s.values()) > 0
