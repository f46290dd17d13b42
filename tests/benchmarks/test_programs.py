"""Benchmarks of the driver, planner, trainer, replays and a GPU run on a small input; timings are not tested."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import driver, gpu, planner_speed
from tests.sources import ROOT
from trials.ranks.engine_packages import PACKAGES


@pytest.mark.slow
def test_a_service_is_driven_to_its_end_and_told_by_windows(monkeypatch):
    monkeypatch.setattr(driver, "FIRST", 4)
    monkeypatch.setattr(driver, "EVERY", 4)
    *windows, whole = driver.service_lines(searches=3, trials=5, in_flight=4)
    assert (whole["trials"], whole["searches"]) == (15, 3)
    assert (windows[0]["from"], windows[-1]["to"]) == (0, 15)
    assert len(windows) >= 2
    assert whole["growth"] > 0
    assert whole["folder_bytes_per_trial"] > 1000  # spec, script and outcome
    assert 0 < whole["questions_per_minute"] <= 10
    # sbatch and scontrol a trial; settings, limits and leaves a search
    assert whole["commands_per_trial"] == pytest.approx(2 + 9 / 15, abs=0.3)


def test_each_part_of_a_plan_is_reported_with_how_many_layouts_it_had(monkeypatch):
    small = planner_speed.SEARCH.replace("gpt-175b", "gpt2-124m").replace("num_nodes: 64", "num_nodes: 1")
    monkeypatch.setattr(
        planner_speed, "SEARCH", small.replace("[16, 32, 48, 64]", "1").replace("[torch, deepspeed]", "torch")
    )
    lines = list(planner_speed.lines(10))
    assert [line["what"] for line in lines][:4] == ["enumerate", "columns", "estimate", "plan"]
    assert lines[0]["layouts"] > 20
    assert {line["layouts"] for line in lines[1:]} == {10}


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_each_engine_is_compared_with_plain_pytorch():
    """In a process of its own, since it joins a world."""
    program = "from benchmarks import trainer; trainer.MODEL = trainer.SMALL; trainer.main()"
    command = [sys.executable, "-c", program, "--rounds", "1", "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=270)
    ratios = json.loads(done.stdout.splitlines()[-1])
    assert list(ratios) == ["step_torch", "step_deepspeed", "step_deepspeed_over_torch"]
    assert all(ratio > 0 for ratio in ratios.values())


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_layout_of_the_gpu_benchmark_is_measured_kept_and_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "CASES", {name: gpu.CASES[name] for name in ("torchtitan, fp8", "flash")})
    monkeypatch.setattr(gpu, "installed_packages", lambda: dict.fromkeys(PACKAGES) | {"torchtitan": "0.3.0"})
    head = {"device": "CPU", "torch": "2", "accelerator": "cpu", "model": gpu.TINY.to_json()}
    file = tmp_path / "data" / "gpu-2026-01-31.json"
    measuring = gpu.measured_cases(head, file, minutes=5)
    assert next(measuring)["package"] == "torchao"
    assert gpu.file_of(file.parent, "2026-02-01", head) == file, "it is not complete"
    [line] = measuring
    assert gpu.file_of(file.parent, "2026-02-01", head).name == "gpu-2026-02-01.json"
    assert line["measured"]["step_time_s"] > 0
    assert line["predicted"]["fit_probability"] == 1.0
    assert json.loads(file.read_text())["cases"]["flash"].items() <= line.items()
    assert [line["case"] for line in gpu.measured_cases(head, file, minutes=5)] == ["torchtitan, fp8"]
    with pytest.raises(SystemExit, match="move it away"):
        list(gpu.measured_cases(head | {"device": "NVIDIA H200"}, file, minutes=5))


@pytest.mark.parametrize("name", gpu.CASES)
def test_every_case_on_a_gpu_has_a_prediction(name):
    layout = gpu.layout_of(name)
    found = gpu.prediction(gpu.MODEL, layout, "h100-80gb")
    assert layout.global_batch_size == gpu.GLOBAL_BATCH_SIZE
    assert 0.1 < found["step_time_s"] < 10
    assert 8 < found["peak_memory_gib"] < 80
