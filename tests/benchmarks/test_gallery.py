"""Gallery: twins, what they plant and report (one of them trains), and predictions of the published recipes."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gallery
from benchmarks.gallery import (
    ENGINE,
    TWINS,
    Twin,
    faults_of,
    filled,
    leaking_copy,
)
from benchmarks.gallery_table import CHOICE, SYSTEMS, Line, gallery_lines
from benchmarks.gallery_table import page_parts as table_parts
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from search_spaces.schema import presets
from tests.orchestrator.config.test_loader import PUBLISHED, TODAY

FILES = sorted({twin.file for twin in TWINS})
LINE: dict[str, Any] = {
    "twin": "asc22-yuan",
    "trials": {"t0001": "measured", "t0002": "gpu_oom"},
    "layout_key": "n1.tp1",
    "speedup": 1.25,
    "speedup_low": 1.1,
    "speedup_high": 1.4,
    "recipe": "/runs/asc22-yuan-twin-aaaaaa/recipe",
    "caveats": ["Measured once: another run, hour or node may be faster or slower."],
    "grows": {},
    "runs": [{"trial": "t0001", "loss_after_epoch": None}],
    "faults": [],
    "seconds": 61.6,
}


def spec_of(twin: Twin) -> SearchSpec:
    path = Path(presets.__file__).parents[1] / presets.TWINS / f"{twin.file}.yaml"
    return load_search_file(path, [*twin.settings])


def test_every_ready_made_twin_is_run():
    assert presets.preset_names(presets.TWINS) == FILES


@pytest.mark.parametrize("twin", TWINS, ids=[twin.name for twin in TWINS])
def test_a_twin_begins_with_its_baseline_on_ranks_of_this_machine(twin: Twin):
    spec = spec_of(twin)
    assert spec.baseline in candidates_of(spec).layouts
    assert spec.launcher.kind == "local"
    assert (spec.cluster.accelerator.name, spec.cluster.num_nodes) == ("cpu", 1)
    assert spec.cluster.gpus_per_node <= 8
    assert spec.search.parallel_trials == 1


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("mt-nlg-530b", {"tensor_parallel": {2}, "pipeline_parallel": {2}, "micro_batch_size": {1, 2, 4}}),
        ("yuan-245b", {"tensor_parallel": {2, 4}, "rank_order": {"tp-dp-pp", "tp-pp-dp"}}),
        ("qwen3-30b-a3b", {"expert_parallel": {1, 2, 4}, "expert_tensor_parallel": {1, 2}}),
    ],
)
def test_a_twin_varies_what_its_system_did(file, values):
    layouts = candidates_of(spec_of(Twin(file, file))).layouts
    assert {axis: {getattr(layout, axis) for layout in layouts} for axis in values} == values


def test_the_zero_projects_twin_goes_a_step_beyond_an_epoch():
    spec = spec_of(Twin("zero-mini", "zero-mini"))
    steps = (gallery.EPOCH_TOKENS - 1) // spec.model.seq_length // spec.global_batch_size
    assert spec.measure.min_steps == spec.measure.max_steps == steps + 1
    assert not spec.measure.early_stopping


def test_the_leaking_copy_keeps_memory_in_each_step_whose_optimizer_is_on_the_host(tmp_path: Path):
    program = (leaking_copy(tmp_path / "copy") / ENGINE).read_text()
    ast.parse(program)
    planted = program.index('.append(b"1" * 4194304)')
    assert program[:planted].rstrip().splitlines()[-2].strip() == 'if self._training.layout.offload == "optimizer":'
    assert "_leaked" not in (gallery.SOURCES / ENGINE).read_text()


GROWS = {"grows": {"t0001": 900}}
CAVEAT = "Host memory grows: at this rate a node is full at step 900, and a longer training fails there."


@pytest.mark.parametrize(
    ("twin", "changed", "faults"),
    [
        ({}, {}, []),
        ({}, {"recipe": None}, ["ended without a recipe"]),
        ({}, GROWS, ["host memory grows in t0001, and no leak was planted"]),
        ({"leaks": True}, {"caveats": [CAVEAT]}, ["the planted leak was not seen in t0001"]),
        ({"leaks": True}, {"caveats": [CAVEAT], **GROWS}, []),
        ({"reads_tokens": True}, {}, ["a run ended before its epoch"]),
    ],
)
def test_what_a_twin_does_not_show_is_a_fault(twin, changed, faults):
    assert list(faults_of(Twin("a", "a", **twin), LINE | changed)) == faults


@pytest.mark.processes
@pytest.mark.walks
@pytest.mark.timeout(900)
def test_the_quickest_twin_trains_an_epoch_and_ends_in_a_recipe(tmp_path: Path):
    [twin] = [twin for twin in TWINS if twin.name == "zero-mini"]
    line = gallery.run_twin(twin, tmp_path, settings=["search.max_trials=2", "measure.time_limit=5m"])
    assert (line["trials"]["t0001"], line["trials"]["t0002"]) == ("measured", "measured")
    assert (Path(line["recipe"]) / "recipe.yaml").is_file()
    assert [(run["zero_stage"], run["offload"]) for run in line["runs"]][:2] == [(0, "none"), (1, "none")]
    for run in line["runs"]:
        assert run["loss_after_epoch"] < run["loss_first"] - 1
        assert run["epoch_s"] > 0


# -- predictions of the published recipes


@pytest.fixture(scope="module")
def table() -> dict[str, list[Line]]:
    """Lines of each system; a plan for each recipe."""
    lines: dict[str, list[Line]] = {}
    for line in gallery_lines():
        lines.setdefault(line["system"], []).append(line)
    return lines


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_system_has_its_recipes_compared_with_what_was_published_and_a_choice(table):
    assert set(table) == {*PUBLISHED, *TODAY} - {"frontier-175b-deephyper"}
    for system, recipes in SYSTEMS.items():
        assert [line["recipe"] for line in table[system]] == [*(each.words for each in recipes), CHOICE]
        assert table[system][-1]["place"] == 1
    step, rate, share = (table[system][0] for system in ("mt-nlg-530b", "asc22-yuan", "frontier-175b"))
    assert step["off"] == {"step_time_s": pytest.approx(step["step_time_s"] / 60.1 - 1)}
    assert rate["off"] == {"tokens_per_sec": pytest.approx(rate["tokens_per_sec"] / 4100 - 1)}
    assert share["off"] == {name: pytest.approx(share[name] / 0.3614 - 1) for name in ("mfu", "hfu")}
    assert len({line["layout_key"] for line in table["zero-mini"][:5]}) == 5


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_page_has_a_place_for_all_and_the_numbers_that_the_models_give_now(table):
    """Written anew by `python -m benchmarks.gallery_table --page docs/gallery.md`."""
    page = (gallery.SOURCES / "docs/gallery.md").read_text()
    parts = table_parts([line for lines in table.values() for line in lines])
    of_twins = {f"twin {twin.name}" for twin in TWINS} | {f"runs {name}" for name in gallery.WITH_RUNS}
    assert {" ".join(mark) for mark in re.findall(r"<!-- (\w+) ([\w-]+) -->", page)} == {*parts} | of_twins
    assert filled(page, parts) == page
