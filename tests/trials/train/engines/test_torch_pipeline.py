"""Memory that torch's pipeline holds in addition to the training. For the training see the parity tests."""

from __future__ import annotations

import pytest

from tests.trials.train.parity import PROGRAMS
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import named_case


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2)])
def test_no_stage_keeps_the_logits_of_a_whole_step(ranks: WarmRanks, schedule, chunks):
    fields = {"pipeline_parallel": 2, "pipeline_schedule": schedule, "virtual_pipeline_stages": chunks}
    given = named_case("logits", **fields)
    answers = ranks.run(f"{PROGRAMS}:outputs_of_a_pipeline", 2, {"case": given.to_json()})
    assert answers == [{"kept": 0, "returned": 0}] * 2
