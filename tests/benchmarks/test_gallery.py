"""Twins of the gallery: what each tries, planted effects, reported lines; one of them trains."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gallery
from benchmarks.gallery import (
    ENGINE,
    TWINS,
    Twin,
    accumulation_table,
    cell_of,
    faults_of,
    filled,
    leaking_copy,
    page_parts,
    runs_table,
)
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from search_spaces.layouts.layout import Layout
from search_spaces.schema import presets

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


def layouts_of(file: str) -> Sequence[Layout]:
    return candidates_of(spec_of(Twin(file, file))).layouts


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


def test_asc22s_twin_shards_by_zero_with_the_optimizer_on_the_host():
    spec = spec_of(TWINS[0])
    assert spec.baseline is not None
    assert (spec.baseline.zero_stage, spec.baseline.offload, spec.baseline.engine) == (2, "optimizer", "deepspeed")
    assert spec.baseline.data_parallel == 4
    assert spec.measure.min_steps > 8, "fewer do not tell whether memory grows"


def test_mt_nlgs_twin_is_cut_three_ways_and_accumulates_what_a_smaller_micro_batch_leaves():
    layouts = layouts_of("mt-nlg-530b")
    assert {(at.tensor_parallel, at.pipeline_parallel, at.data_parallel) for at in layouts} == {(2, 2, 2)}
    assert [(at.micro_batch_size, at.grad_accum_steps) for at in layouts] == [(1, 8), (2, 4), (4, 2)]


def test_yuans_twin_keeps_its_tensor_ranks_within_a_server_of_four():
    layouts = layouts_of("yuan-245b")
    assert {at.tensor_parallel for at in layouts} == {2, 4}
    assert {at.pipeline_parallel for at in layouts} == {2}
    assert {at.rank_order for at in layouts} == {"tp-dp-pp", "tp-pp-dp"}


def test_frontiers_twin_varies_what_the_study_varied():
    layouts = layouts_of("frontier")
    for axis in ("tensor_parallel", "pipeline_parallel", "micro_batch_size", "grad_accum_steps"):
        assert len({getattr(at, axis) for at in layouts}) >= 3
    assert [spec_of(twin).search.sampler for twin in TWINS if twin.file == "frontier"] == ["deephyper", "guided"]


def test_the_zero_projects_twin_has_its_five_runs_and_goes_a_step_beyond_an_epoch():
    found = {(at.zero_stage, at.offload) for at in layouts_of("zero-mini")}
    assert found >= set(gallery._THEIR_RUNS)
    spec = spec_of(Twin("zero-mini", "zero-mini"))
    steps = (gallery.EPOCH_TOKENS - 1) // spec.model.seq_length // spec.global_batch_size
    assert spec.measure.min_steps == spec.measure.max_steps == steps + 1
    assert not spec.measure.early_stopping


def test_the_twin_with_experts_distributes_and_splits_them():
    layouts = layouts_of("qwen3-30b-a3b")
    assert {at.expert_parallel for at in layouts} == {1, 2, 4}
    assert {at.expert_tensor_parallel for at in layouts} == {1, 2}
    spec = spec_of(Twin("qwen3-30b-a3b", "qwen3-30b-a3b"))
    assert (spec.model.num_experts, spec.model.experts_per_token, spec.measure.routing) == (8, 2, "balanced")


def test_the_twin_with_long_sequences_splits_them():
    layouts = layouts_of("llama-3-long")
    assert {(at.context_parallel, at.data_parallel, at.tensor_parallel) for at in layouts} >= {(4, 1, 1), (2, 1, 2)}
    assert {at.context_transport for at in layouts if at.context_parallel > 1} == {"all_gather"}


def test_a_replay_asks_for_one_verdict_and_waits_for_no_other_session(tmp_path: Path, monkeypatch):
    told = {"search_id": "s-aaaaaa", "recipe": "recipe", "verdict": "inconclusive"}
    asked = []
    monkeypatch.setattr(gallery, "_parlay", lambda words, *_: asked.append(words) or told)
    monkeypatch.setattr(gallery, "find_search", lambda *_: None)
    monkeypatch.setattr(gallery, "line_of", lambda *_: {})
    assert gallery.run_twin(TWINS[0], tmp_path, replay=True)["replay"] == "inconclusive"
    assert asked[1][:4] == ["replay", "recipe", "--sessions", "1"]


def test_the_leaking_copy_keeps_memory_in_each_step_whose_optimizer_is_on_the_host(tmp_path: Path):
    program = (leaking_copy(tmp_path / "copy") / ENGINE).read_text()
    ast.parse(program)
    planted = program.index('.append(b"1" * 4194304)')
    assert program[:planted].rstrip().splitlines()[-2].strip() == 'if self._training.layout.offload == "optimizer":'
    assert "_leaked" not in (gallery.SOURCES / ENGINE).read_text()


def test_a_program_that_ends_its_steps_otherwise_leaks_nothing_by_chance(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(gallery, "_END_OF_STEP", "        return None\n")
    with pytest.raises(ValueError, match="does not end a step"):
        leaking_copy(tmp_path / "copy")


class TestFaults:
    CLEAN, LEAKING = Twin("a", "a"), Twin("a", "a", leaks=True)

    def test_a_clean_twin_has_a_recipe_and_no_growth(self):
        assert list(faults_of(self.CLEAN, LINE)) == []

    def test_no_recipe(self):
        assert list(faults_of(self.CLEAN, LINE | {"recipe": None})) == ["ended without a recipe"]

    def test_growth_that_nobody_planted(self):
        [fault] = faults_of(self.CLEAN, LINE | {"grows": {"t0001": 900}})
        assert fault == "host memory grows in t0001, and no leak was planted"

    def test_a_planted_leak_that_is_not_seen(self):
        caveat = "Host memory grows: at this rate a node is full at step 900, and a longer training fails there."
        told = LINE | {"caveats": [caveat]}
        assert list(faults_of(self.LEAKING, told)) == ["the planted leak was not seen in t0001"]
        assert list(faults_of(self.LEAKING, told | {"grows": {"t0001": 900}})) == []

    def test_a_recipe_that_keeps_a_leak_to_itself(self):
        [fault] = faults_of(self.LEAKING, LINE | {"grows": {"t0001": 900}})
        assert fault == "the recipe does not say when its training fills a node's memory"

    def test_a_run_that_knows_no_epoch(self):
        assert list(faults_of(Twin("z", "z", reads_tokens=True), LINE)) == ["a run ended before its epoch"]


class TestPage:
    def test_a_cell_names_the_layout_and_how_much_faster_it_is_than_the_baseline(self):
        assert cell_of(LINE) == "`n1.tp1`; 1.25 x the baseline's tokens/s (1.10 to 1.40); 2 trials in 62 s"

    def test_a_cell_says_whose_memory_grows_until_when(self):
        assert cell_of(LINE | {"grows": {"t0001": 1244}}).endswith("host memory grows: full at step 1244 (t0001)")

    def test_the_gallery_has_a_place_for_all_that_its_twins_show(self):
        page = (gallery.SOURCES / "docs/gallery.md").read_text()
        marks = set(re.findall(r"<!-- ((?:twin|runs) [\w-]+) -->", page))
        assert marks == {f"twin {twin.name}" for twin in TWINS} | {f"runs {name}" for name in gallery.TABLES}

    def test_what_was_seen_goes_between_its_marks_and_nowhere_else(self):
        page = "| a | <!-- twin asc22-yuan -->old<!-- / --> | <!-- twin frontier -->kept<!-- / --> |\n"
        once = filled(page, page_parts([LINE]))
        assert once == page.replace("old", cell_of(LINE))
        assert filled(once, page_parts([LINE])) == once

    def test_runs_without_a_gpu_have_no_gpu_memory(self):
        run = {"zero_stage": 3, "offload": "optimizer", "tokens_per_sec": 4152.4, "epoch_s": 8.44}
        run |= {"gpu_memory_gib": None, "peak_host_memory_gib": 0.621, "loss_first": 5.4921, "loss_after_epoch": 3.281}
        row = runs_table({"runs": [run]}).splitlines()[-1]
        assert row == "| 3 | host | 4,152 | 8.4 | n/a (CPU) | 0.62 GiB | 5.492, 3.281 |"

    def test_micro_batches_are_compared_from_the_smallest_on(self):
        runs = [
            {"micro_batch_size": size, "grad_accum_steps": 8 // size, "tokens_per_sec": 1e3, "peak_memory_gib": 0.3}
            for size in (4, 1)
        ]
        rows = accumulation_table({"runs": runs}).splitlines()
        assert rows[2:] == ["| 1 | 8 | 1,000 | 0.300 GiB |", "| 4 | 2 | 1,000 | 0.300 GiB |"]


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
        assert run["gpu_memory_gib"] is None
