"""Counts of the driver benchmark; its timings depend on the machine and are not tested."""

from __future__ import annotations

import pytest

from benchmarks import driver, driver_in_ray, driver_on_fake
from benchmarks.driver_on_fake import Load


@pytest.mark.slow
def test_a_service_is_driven_to_its_end_and_told_by_windows(monkeypatch):
    monkeypatch.setattr(driver_on_fake, "FIRST", 4)
    monkeypatch.setattr(driver_on_fake, "EVERY", 4)
    *windows, whole = driver.service_lines(Load(searches=3, trials=5, in_flight=4))
    assert (whole["trials"], whole["searches"]) == (15, 3)
    assert (windows[0]["from"], windows[-1]["to"]) == (0, 15)
    assert len(windows) >= 2
    assert whole["growth"] > 0
    assert whole["cpu_ms_per_trial"] > 0
    assert set(whole["shares"]) <= {"journal", "ledger", "launcher", "files", "loop"}
    assert sum(whole["shares"].values()) == pytest.approx(1.0, abs=0.05)
    assert whole["folder_bytes_per_trial"] > 1000  # spec, script and outcome
    assert 0 < whole["questions_per_minute"] <= 10
    assert whole["commands_per_trial"] == pytest.approx(2 + 3 / 15, abs=0.3)  # sbatch and scontrol, and three configs


def test_others_are_reported_beside_parlays_own():
    found = [
        {"what": "parlay", "trials": 10, "cpu_s": 0.5, "commands_cpu_s": 0.2, "started_cpu_s": 1.0},
        {"what": "other", "trials": 10, "cpu_s": 2.5, "commands_cpu_s": 0.0, "started_cpu_s": 1.0},
    ]
    own, other = driver.compare_drivers(found)
    assert (own["cpu_ms_per_trial"], own["commands_ms_per_trial"], own["over_parlay"]) == (50.0, 20.0, 1.0)
    assert (other["cpu_ms_per_trial"], other["over_parlay"]) == (250.0, 5.0)


def test_memory_is_reported_by_kinds_of_processes_and_for_all_together(monkeypatch):
    monkeypatch.setattr(driver_in_ray, "memory_mib", float)  # each process is its own size here
    service, actors, together = driver_in_ray.memory_lines({"service": [100], "actors": [80, 120]})
    assert (service["processes"], service["pss_mib"]) == (1, 100)
    assert (actors["processes"], actors["pss_mib"]) == (2, 200)
    assert (actors["pss_mib_each"], actors["largest_pss_mib"]) == (100, 120)
    assert (together["what"], together["processes"], together["pss_mib"]) == ("together", 3, 300)
