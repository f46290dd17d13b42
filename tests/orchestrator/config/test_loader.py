"""Loading of a search file: given values, derived values, candidates, its JSON schema; and what is written of it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from orchestrator.config.loader import json_schema, load_search_file
from orchestrator.config.reference import reference
from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.planning.candidates import candidates_of, require_affordable
from orchestrator.search.samplers.cost_model_posterior import TuningTask
from orchestrator.search.samplers.factory import other_software
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import MemoryPosterior
from search_spaces.errors import InputError, Problem
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.schema import presets
from search_spaces.tables.measured_table import render_table
from tests.kit import EVERYTHING, MINIMAL, TABLE_SEARCH, loaded, refusals
from tests.search_spaces.example_tables import only
from trials.analysis.finals import Finals
from trials.analysis.ranking import Objective


def test_a_few_lines_are_a_search_and_the_rest_is_default(tmp_path: Path):
    spec = loaded(tmp_path)
    assert spec.model.ffn_hidden_size == 4 * spec.model.hidden_size
    assert spec.cluster.num_gpus == 4
    assert spec.objective is Objective.TOKENS_PER_SEC
    assert (spec.search.sampler, spec.search.max_trials, spec.search.parallel_trials) == ("guided", 30, 1)
    assert (spec.launcher.kind, spec.tracking.experiment, spec.trainer.kind) == ("ray", "parlay", "parlay")
    assert spec.measure.time_limit_s == 600
    assert spec.work_dir == Path.cwd() / "runs"
    assert spec.baseline is None
    assert len(candidates_of(spec).layouts) == 2


def test_the_quickstart_has_many_layouts_and_a_legal_baseline_among_them():
    spec = load_search_file(Path("quickstart"))
    layouts = candidates_of(spec).layouts
    assert spec.baseline in layouts
    assert len(layouts) > spec.search.max_trials >= 8
    assert {layout.global_batch_size for layout in layouts} == {spec.global_batch_size}
    for field in ("tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size", "grad_accum_steps"):
        assert len({getattr(layout, field) for layout in layouts}) >= 3


@pytest.mark.parametrize(
    ("measure", "steps"),
    [
        ("{}", (8, 40, 20)),
        ("{max_steps: 5}", (5, 5, 2)),
        ("{max_steps: 90}", (8, 90, 20)),
    ],
)
def test_steps_that_are_not_written_follow_the_most_that_are(tmp_path: Path, measure: str, steps: tuple[int, ...]):
    rules = loaded(tmp_path, MINIMAL + f"measure: {measure}\n").measure
    assert (rules.min_steps, rules.max_steps, rules.max_warmup_steps) == steps


IN_IMAGE = "launcher={kind: slurm, slurm: {container: {runtime: pyxis, image: a.sqsh}}}"


def test_an_experiment_tries_its_layouts_with_both_stacks_and_measures_each_run_to_its_end(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL, "search.against=/opt/b/bin/python", "search.against_layouts=4")
    assert (spec.search.max_trials, spec.search.finalists, spec.measure.early_stopping) == (8, 8, False)
    assert other_software(spec) == {"python": "/opt/b/bin/python"}
    assert other_software(loaded(tmp_path, MINIMAL, IN_IMAGE, "search.against=b.sqsh")) == {
        "image": str(tmp_path / "b.sqsh")
    }


@pytest.mark.parametrize(
    ("given", "overrides", "read"),
    [
        ("venv/bin/python", (), "{folder}/venv/bin/python"),
        ("python3.12", (), "python3.12"),  # looked up on the node's PATH
        ("nvcr.io#nvidia/pytorch:25.10", (IN_IMAGE,), "nvcr.io#nvidia/pytorch:25.10"),
    ],
)
def test_the_path_of_a_second_stack_starts_from_the_files_folder(tmp_path: Path, given, overrides, read):
    """Ranks start in other folders."""
    spec = loaded(tmp_path, MINIMAL, *overrides, search={"against": given})
    assert spec.search.against == read.format(folder=tmp_path)


def test_every_key_arrives(tmp_path: Path):
    spec = loaded(tmp_path, EVERYTHING)
    assert spec.space.tensor_parallel == (1, 2, 4)
    assert spec.space.micro_batch_size == (2, 4, 6, 8)
    assert spec.space.bucket_mib == (None, 25)
    assert spec.search.max_wall_time_s == 36 * 3600
    assert (spec.search.finalists, spec.search.finalist_repeats, spec.search.finals) == (4, 3, Finals.FIXED)
    assert spec.measure.time_limit_s == 90
    assert spec.measure.memory_limit_gib == 1.5
    assert spec.trainer.python == "/opt/python"
    assert spec.work_dir == Path("/scratch/runs")
    assert spec.constraints.max_nodes == 2
    assert spec.memory_headroom == MemoryHeadroom(capacity_gib=1.5, min_free_gib=0.5)


def test_an_error_found_later_gets_file_and_line_of_its_key(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL + "search: {max_trials: 3,\n  seed: 2}\n", "launcher.kind=local")
    keys = ["search.seed", "search.parallel_trials", "space.tensor_parallel[1]", "launcher.kind", "trainer.python"]
    found = with_locations(InputError(*(Problem("x", "x", key=key) for key in keys)), spec)
    file = str(tmp_path / "search.yaml")
    assert [(p.file, p.line) for p in found.problems] == [
        (file, 8),
        (file, 7),
        (file, 6),
        ("--set", None),
        (None, None),
    ]
    table = InputError.of("cell", "is bad", key="search", file="table.csv")
    assert with_locations(table, spec).problems == table.problems
    assert with_locations(table, SearchSpec.from_json(spec.to_json())).problems == table.problems


def test_a_budget_below_one_trial_is_refused_with_the_numbers(tmp_path: Path):
    text = MINIMAL.replace("this-machine", "{accelerator: cpu, gpus_per_node: 4, num_nodes: 4}")
    text += "  num_nodes: [2, 4]\nsearch:\n  budget_node_hours: 0.25\n"
    spec = loaded(tmp_path, text)
    with pytest.raises(
        InputError, match=r"0\.25 node-hours are less than one trial may cost: num_nodes 2 x \d+ s = 0\.\d+ "
    ) as caught:
        require_affordable(spec, candidates_of(spec))
    assert caught.value.problems[0].line == 9
    for override in ("search.budget_node_hours=1", "search.budget_node_hours=null"):
        affordable = loaded(tmp_path, text, override)
        require_affordable(affordable, candidates_of(affordable))


def test_the_baseline_takes_what_it_does_not_say_from_the_space_and_the_batch(tmp_path: Path):
    text = MINIMAL + "  engine: deepspeed\nbaseline: {tensor_parallel: 2, micro_batch_size: 4}\n"
    baseline = loaded(tmp_path, text).baseline
    assert baseline == Layout(
        tensor_parallel=2, data_parallel=2, micro_batch_size=4, grad_accum_steps=2, engine="deepspeed"
    )


@pytest.mark.slow
def test_several_objectives_are_kept_in_their_order_and_the_first_decides(tmp_path: Path):
    several = "objective: [node_hours_per_billion_tokens, tokens_per_sec]\n"
    spec = loaded(tmp_path, MINIMAL + several)
    assert spec.objectives == (Objective.NODE_HOURS_PER_BILLION_TOKENS, Objective.TOKENS_PER_SEC)
    assert spec.objective is Objective.NODE_HOURS_PER_BILLION_TOKENS
    written = spec.to_json()
    assert written["objectives"] == ["node_hours_per_billion_tokens", "tokens_per_sec"]
    assert SearchSpec.from_json(written) == spec
    assert loaded(tmp_path, MINIMAL + "objective: [tokens_per_sec]\n").to_json()["objectives"] == ["tokens_per_sec"]
    jsonschema.validate(yaml.safe_load(MINIMAL + several), json_schema())


def test_a_ready_made_search_goes_by_its_name_where_no_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_search_file(Path("quickstart")).name == "quickstart"
    assert load_search_file(Path("twins/frontier")).name == "frontier-twin"
    Path("quickstart").write_text(MINIMAL.replace("name: ", "name: my-"))
    assert load_search_file(Path("quickstart")).name.startswith("my-")


def test_a_cluster_file_is_found_from_the_search_files_folder(tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("accelerator: A100-SXM4-80GB\ngpus_per_node: 4\nnum_nodes: 3\n")
    spec = loaded(tmp_path, MINIMAL.replace("this-machine", "ours.yaml"), "global_batch_size=24")
    assert (spec.cluster.accelerator.name, spec.cluster.num_gpus) == ("a100-80gb", 12)


def test_mistakes_in_a_cluster_file_are_reported_with_its_own_lines(tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("accelerator: cpu\ngpus_per_node: 0\nnodes: 3\n")
    found = refusals(tmp_path, MINIMAL.replace("this-machine", "./ours.yaml"))
    assert {p.file for p in found} == {str(tmp_path / "ours.yaml")}
    assert [(p.key, p.line) for p in found] == [("num_nodes", None), ("gpus_per_node", 2), ("nodes", 3)]


def test_a_measured_table_is_a_closed_set_that_no_longer_depends_on_the_file(tmp_path: Path):
    rows = only({}, {"tensor_parallel": "4", "data_parallel": "1", "grad_accum_steps": "64"})
    (tmp_path / "table.csv").write_text(render_table(rows))
    spec = loaded(tmp_path, TABLE_SEARCH)
    assert spec.candidates == tuple(row.layout for row in rows)
    assert spec.launcher.table == str(tmp_path / "table.csv")
    (tmp_path / "table.csv").unlink()
    again = SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert tuple(candidates_of(again).layouts) == spec.candidates


def test_a_table_without_a_row_for_this_search_is_refused(tmp_path: Path):
    (tmp_path / "table.csv").write_text(render_table(only({})))
    found = refusals(tmp_path, TABLE_SEARCH, "global_batch_size=128")
    assert [(p.code, p.key, p.line) for p in found] == [("no_measurement", "space.candidates", 12)]
    (tmp_path / "other.csv").write_text(render_table(only({})))
    found = refusals(tmp_path, TABLE_SEARCH, "global_batch_size=128", "launcher.table=other.csv")
    assert [(p.code, p.key, p.line) for p in found] == [
        ("no_measurement", "space.candidates", 12),
        ("no_measurement", "launcher.table", None),
    ]


def test_a_table_that_is_to_be_run_holds_to_every_rule(tmp_path: Path):
    few = {"engine": "torch", "pipeline_parallel": "4", "data_parallel": "1", "micro_batch_size": "256"}
    (tmp_path / "table.csv").write_text(render_table(only({}, few | {"grad_accum_steps": "1"})))
    spec = loaded(tmp_path, TABLE_SEARCH, "launcher={kind: local}")
    with pytest.raises(InputError, match="none of 2 layouts is valid") as caught:
        candidates_of(spec)
    (problem,) = caught.value.problems
    assert "nanotron.engine_mismatch rejected 1" in problem.message
    assert problem.line == 12


def test_a_bad_row_is_reported_with_its_line_and_once_where_the_table_is_both_candidates_and_answers(tmp_path: Path):
    (tmp_path / "table.csv").write_text(render_table(only({})).replace(",256,", ",255,", 1))
    for changes in ((), ("launcher={kind: local}",)):
        found = refusals(tmp_path, TABLE_SEARCH, *changes)
        assert [(p.file, p.key, p.line) for p in found] == [(str(tmp_path / "table.csv"), "global_batch_size", 2)]


@pytest.mark.parametrize("text", [MINIMAL, EVERYTHING])
def test_a_search_written_down_is_read_back_the_same(tmp_path: Path, text: str):
    spec = loaded(tmp_path, text)
    written = json.loads(json.dumps(spec.to_json(), allow_nan=False))
    assert written["schema"] == SearchSpec.SCHEMA
    assert SearchSpec.from_json(written) == spec
    assert [*candidates_of(SearchSpec.from_json(written)).layouts] == [*candidates_of(spec).layouts]


@pytest.mark.parametrize("schema", ["parlay.search_spec/2", "parlay.search/1", None])
def test_a_newer_or_other_search_json_is_refused(tmp_path: Path, schema: str | None):
    with pytest.raises(InputError, match=r"this Parlay reads parlay\.search_spec/1"):
        SearchSpec.from_json(loaded(tmp_path).to_json() | {"schema": schema})
    with pytest.raises(InputError):
        SearchSpec.from_json(json.loads("[]"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"model": None}, "is not a valid search record"),
        ({"cluster": {"gpus_per_node": 4}}, "accelerator is missing"),
        ({"measure": {"min_step": 3}}, "min_step"),
        ({"baseline": {"tensor": 1}}, "unknown layout field 'tensor'"),
        ({"objectives": ["speed"]}, "objectives is 'speed', not Objective"),
        ({"objectives": []}, r"objectives is \[\], not one or more"),
        ({"work_dir": 3}, "work_dir: the path is 3, not str"),
        ({"search": {"sampler": "grid"}}, "SearchSection lacks sample_space"),
        ({"global_batch_size": "16"}, "global_batch_size is '16'"),
    ],
)
def test_a_damaged_search_json_is_refused_with_what_is_wrong(tmp_path: Path, damage, words: str):
    with pytest.raises(InputError, match=words):
        SearchSpec.from_json(loaded(tmp_path).to_json() | damage)


@pytest.mark.parametrize("key", ["name", "model", "space", "launcher", "baseline", "candidates", "work_dir"])
def test_a_search_json_without_one_of_its_keys_is_refused_by_its_name(tmp_path: Path, key: str):
    written = loaded(tmp_path).to_json()
    del written[key]
    with pytest.raises(InputError, match=f"{key} is missing"):
        SearchSpec.from_json(written)


SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize(
    "text", [MINIMAL, EVERYTHING, presets.preset_text(presets.SEARCHES, "quickstart"), TABLE_SEARCH]
)
def test_the_json_schema_accepts_what_is_read(text: str):
    VALIDATOR.check_schema(SCHEMA)
    VALIDATOR.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "line",
    [
        *("serch: {}", "search: {sampler: best}", "search: {max_trials: 0}", "search: {seed: 1.5}", "constraints: []"),
        *("measure: {min_steps: 4}", "baseline: {data_parallel: 2}", "launcher: {kind: pbs}", "objective: speed"),
        *(f"  micro_batch_size: {axis}" for axis in ("[]", "[1, 1]", "{min: 1, max: 2}", "two", "0", "[x]")),
    ],
)
def test_the_json_schema_refuses_what_is_refused(tmp_path: Path, line: str):
    text = f"{MINIMAL}{line}\n"
    refusals(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(yaml.safe_load(text))


def test_the_reference_page_says_what_the_schemas_say():
    page = Path(presets.__file__).parents[2] / "docs" / "search_file.md"
    assert page.read_text() == reference()
    assert "| `max_trials` | whole number from 1 to 1000000; default `30` |" in page.read_text()


def test_the_smallest_search_of_the_reference_page_is_a_search(tmp_path: Path):
    example = reference().split("<<'END'\n")[1].split("END\n")[0]
    assert loaded(tmp_path, example) == loaded(tmp_path)


PUBLISHED = {
    # name: ranks, tensor, pipeline, data, as their authors state them; the last two ran without model parallelism.
    "mt-nlg-530b": (2240, 8, 35, 8),
    "yuan-245b": (2128, 8, 38, 7),
    "frontier-22b": (16, 1, 8, 2),
    "frontier-175b": (128, 4, 16, 2),
    "frontier-175b-deephyper": (128, 4, 16, 2),
    "frontier-1t": (1024, 4, 128, 2),
    "asc22-yuan": (4, 1, 1, 4),
    "zero-mini": (2, 1, 1, 2),
}
TODAY = {
    "llama3-70b-h100": (64, 4, 8, 2),
    "qwen3-30b-a3b-gb200": (8, 1, 1, 8),
    "gpt-oss-120b-gb200": (64, 1, 1, 64),
    "llama3-8b-lora-h100": (1, 1, 1, 1),
}
"""Layouts of NeMo's performance summaries, whose recipes have a loss that keeps less memory."""


@pytest.mark.parametrize("name", [*PUBLISHED, *TODAY])
def test_a_published_layout_is_the_baseline_of_its_search_and_fits(name: str):
    spec = load_search_file(Path(name))
    layout = spec.baseline
    assert layout is not None
    found = (layout.num_gpus, layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel)
    assert found == (PUBLISHED | TODAY)[name]
    assert layout in candidates_of(spec).layouts
    assert fits(spec) >= (0.5 if name in PUBLISHED else 0.1)


def fits(spec: SearchSpec) -> float:
    """Probability that the baseline fits, before any trial."""
    assert spec.baseline is not None
    peak = stage_memory(spec.model, LayoutTable.of([spec.baseline])).peak
    capacity = TuningTask(spec.model, spec.cluster, spec.objective, spec.measure.memory_limit_gib).capacity_gib
    return float(MemoryPosterior(capacity, []).fits(peak)[0])
