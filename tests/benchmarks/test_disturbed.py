"""Short form of the benchmark that disturbs searches."""

from __future__ import annotations

import pytest

from benchmarks.disturbed import AN_HOUR, Plan, run

pytestmark = [pytest.mark.processes, pytest.mark.nightly, pytest.mark.minutes, pytest.mark.timeout(900)]


@pytest.mark.fault(2, 9, 14, 18, 29, 30)
def test_after_everything_has_happened_once_journal_ledger_slurm_and_mlflow_tell_the_same():
    happens = dict.fromkeys(AN_HOUR, 1)
    result = run(Plan(20.0, seed=1, times=happens, served=2, trials=4, takes_s=1.0))
    assert result["contradictions"] == []
    assert result["happened"].items() >= happens.items()
    assert result["file_checks"] == 3
    assert result["searches"] >= 3
