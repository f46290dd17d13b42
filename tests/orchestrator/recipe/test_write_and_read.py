from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.recipe.build import build_recipe
from orchestrator.recipe.read import read_recipe
from orchestrator.recipe.recipe import Recipe, checksum, recipe_yaml
from orchestrator.recipe.write import write_recipe
from search_spaces.adapters import Adapters
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, Layout
from search_spaces.schema.unsafe_text import is_printable
from search_spaces.schema.yaml_document import parse_document
from tests.kit import TINY
from tests.orchestrator.recipe.builders import LAYOUT, SLOWER_LAYOUT, measured_trial, source_of
from trials.trainers.parlay.trainer import GRADIENT_CLIPPING
from trials.trial import TrialKind


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code"
    (folder / "trials").mkdir(parents=True)
    (folder / "trials" / "__init__.py").write_text("")
    (folder / "trials" / "train.py").write_text("print('trains')\n")
    return folder


@pytest.fixture
def folder(tmp_path, code):
    path = tmp_path / "recipe"
    write_recipe(path, source(), code)
    return path


def source(**details):
    return source_of(measured_trial("t0001", SLOWER_LAYOUT, 0.2), measured_trial("t0002", LAYOUT, 0.1), **details)


def test_the_folder_holds_the_files_the_contract_names_and_says_how_to_start_each(folder):
    names = {path.name for path in folder.iterdir()}
    expected = {"recipe.yaml", "ds_config.json", "launch.sh", "evidence.json", "README.md", "env.txt"}
    told = {"megatron_args.txt", "megatron_deepspeed_args.txt", "megatron_deepspeed_config.json", "gpt_neox.yml"}
    assert names == expected | told | {"spec.json", "code"}
    by_trainer = {export["trainer"]: export for export in read_recipe(folder).recipe.exports}
    for export in by_trainer.values():
        assert all((folder / name).exists() for name in export["files"])
    said = {"status": "not_measured", "files": ["megatron_args.txt"], "rule": None, "message": None, "replayed": None}
    assert said.items() <= by_trainer["megatron-lm"].items()
    assert by_trainer["megatron-lm"]["unrun_start"].endswith(" $(grep -v '^#' recipe/megatron_args.txt) YOUR_OPTIONS")
    refused = {"status": "refused", "rule": "megatron-bridge.attention_kernel", "files": []}
    assert refused.items() <= by_trainer["megatron-bridge"].items()
    text = (folder / "README.md").read_text()
    assert re.findall(r"\n    (.*)", text)[0] == "bash launch.sh"
    assert "**Megatron-LM**, not measured with this trainer; this line was not run (`megatron_args.txt`):\n\n" in text
    assert "- NeMo Megatron-Bridge: attention_kernel is math; Megatron-Bridge supports attention_kernel flash" in text
    assert os.access(folder / "launch.sh", os.X_OK)


def test_a_recipe_has_the_adapters_of_its_search_and_says_what_trains(tmp_path, code):
    tuned = replace(TINY, adapters=Adapters(2, alpha=8, target_modules=("c_attn",)), trainable=())
    write_recipe(tmp_path / "recipe", source(model=tuned), code)
    loaded = read_recipe(tmp_path / "recipe")
    assert loaded.recipe.model == loaded.spec().model == tuned
    text = (tmp_path / "recipe" / "README.md").read_text()
    assert f"- {tuned.trainable_parameters:,} of {tuned.parameters:,} parameters train: lora of rank 2\n" in text


def test_a_recipe_reads_back_from_its_folder_and_from_its_file(folder):
    loaded = read_recipe(folder)
    assert loaded == read_recipe(folder / "recipe.yaml")
    assert loaded.recipe.layout == LAYOUT
    assert loaded.banner is None
    spec = loaded.spec()
    assert (spec.kind, spec.layout, spec.num_gpus) == (TrialKind.REPLAY, LAYOUT, 4)


def test_an_older_recipe_is_replaced_whole_or_stays(folder, code, tmp_path):
    (folder / "left_over.txt").write_text("old")
    write_recipe(folder, source(), code)
    assert not (folder / "left_over.txt").exists()
    assert {path.name for path in folder.parent.iterdir()} == {"code", "recipe"}
    before = (folder / "recipe.yaml").read_text()
    with pytest.raises(OSError, match="no_code"):
        write_recipe(folder, source(), tmp_path / "no_code")
    assert (folder / "recipe.yaml").read_text() == before
    assert {path.name for path in folder.parent.iterdir()} == {"code", "recipe"}


@pytest.mark.bad_input(42)
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("recipe.yaml", "repeats: 1", "repeats: 3"),
        ("evidence.json", "node01", "node02"),
        ("spec.json", '"seed": 1234', '"seed": 1'),
        ("launch.sh", "set -euo pipefail", "true"),
        ("code/trials/train.py", "trains", "cheats"),
    ],
)
def test_an_edited_recipe_is_refused_and_forced_only_with_a_banner(folder, name, old, new):
    text = (folder / name).read_text()
    assert old in text
    (folder / name).write_text(text.replace(old, new))
    with pytest.raises(InputError, match="was edited: its checksum differs"):
        read_recipe(folder)
    assert read_recipe(folder, force=True).banner.startswith("EDITED RECIPE: " + name.split("/")[0])


def test_a_missing_file_is_named_and_caches_are_no_edit(folder):
    cache = folder / "code" / "trials" / "__pycache__"
    cache.mkdir()
    (cache / "train.pyc").write_bytes(b"x")
    assert read_recipe(folder).banner is None
    (folder / "evidence.json").unlink()
    with pytest.raises(InputError, match=r"evidence\.json is missing"):
        read_recipe(folder)
    (folder / "spec.json").unlink()
    with pytest.raises(InputError, match=r"--force needs its spec\.json"):
        read_recipe(folder, force=True).spec()


@pytest.mark.bad_input(42)
def test_a_recipe_of_a_newer_parlay_is_refused_even_when_forced(folder):
    file = folder / "recipe.yaml"
    file.write_text(file.read_text().replace("parlay.recipe/1", "parlay.recipe/2"))
    with pytest.raises(InputError, match=r"this Parlay reads parlay\.recipe/1") as error:
        read_recipe(folder, force=True)
    assert error.value.problems[0].file == str(file)
    assert "needs the Parlay of its parlay_version" in error.value.problems[0].fix


def test_force_does_not_make_up_for_arithmetic_that_is_wrong(folder):
    file = folder / "recipe.yaml"
    as_written = file.read_text()
    file.write_text(as_written.replace("grad_accum_steps: 4", "grad_accum_steps: 3", 1))
    with pytest.raises(InputError, match="micro batch 2 x accumulation 3") as error:
        read_recipe(folder, force=True)
    assert error.value.problems[0].rule == BATCH_RULE
    assert error.value.problems[0].fix.endswith("or make all its numbers agree and read it with --force")
    file.write_text(as_written.replace("tensor_parallel: 2", "tensor_parallel: 4", 1))
    with pytest.raises(InputError) as error:
        read_recipe(folder, force=True)
    assert WORLD_RULE in [problem.rule for problem in error.value.problems]


def test_numbers_that_were_edited_to_agree_are_read_when_forced(folder):
    file = folder / "recipe.yaml"
    halved = file.read_text().replace("grad_accum_steps: 4", "grad_accum_steps: 2")
    for name in ("global_batch_size", "tokens_per_step"):
        halved = re.sub(rf"{name}: (\d+)", lambda found: f"{found[0].split()[0]} {int(found[1]) // 2}", halved)
    file.write_text(halved)
    assert read_recipe(folder, force=True).recipe.layout.grad_accum_steps == 2


@pytest.mark.parametrize("text", [None, "", "- a list", "a: ["])
def test_what_is_no_recipe_is_told_how_one_is_named(tmp_path, text):
    if text is not None:
        (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=r"recipe\.yaml") as refused:
        read_recipe(tmp_path)
    assert refused.value.problems[0].fix.startswith("name a recipe by its folder")


def test_env_txt_has_the_ranks_variables_and_ds_config_the_layouts_batch(folder):
    assert (folder / "env.txt").read_text() == "OMP_NUM_THREADS=1\nCUDA_VISIBLE_DEVICES=''\n"
    config = json.loads((folder / "ds_config.json").read_text())
    assert config["train_batch_size"] == LAYOUT.global_batch_size
    from trials.train.engines.optimizer import OptimizerConfig

    assert OptimizerConfig().max_grad_norm == GRADIENT_CLIPPING


def test_the_readme_says_first_what_a_person_wants_to_know_and_exports_are_rendered_once(tmp_path, code, monkeypatch):
    today = measured_trial("t0001", SLOWER_LAYOUT, 0.2)
    write_recipe(tmp_path / "recipe", source_of(today, measured_trial("t0002", LAYOUT, 0.1), baseline=today), code)
    lines = (tmp_path / "recipe" / "README.md").read_text().splitlines()
    assert lines[0] == "# quickstart-abc234: 2.00x faster than the baseline (1.92–2.08)"
    assert any(line.startswith("| t0001 (baseline) |") for line in lines)
    rendered = []
    monkeypatch.setattr("orchestrator.recipe.build.exports", lambda *given: rendered.append(given) or [])
    write_recipe(tmp_path / "recipe", source_of(measured_trial("t0001", LAYOUT, 0.1)), code)
    assert len(rendered) == 1


BUILT = build_recipe(source(), "2026-01-01T00:00:00.000000Z", "0.1.0", {"spec.json": "sha256:0"})
FIELDS = list(BUILT.to_json())


def recipe(**changes) -> Recipe:
    return replace(BUILT, **changes)


def reread(text: str) -> dict:
    return dict(parse_document(text.encode(), "recipe.yaml", Path()).data)


texts = st.text(max_size=20).filter(is_printable)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
layouts = st.builds(
    Layout,
    tensor_parallel=st.sampled_from([1, 2, 4]),
    pipeline_parallel=st.sampled_from([1, 2, 4]),
    micro_batch_size=st.integers(1, 8),
    grad_accum_steps=st.integers(1, 8),
    bucket_mib=st.none() | st.integers(1, 500),
)


@pytest.mark.slow
@given(layout=layouts, fingerprint=st.dictionaries(texts, values, max_size=4), caveats=st.lists(texts, max_size=3))
def test_what_is_written_reads_back_equal_with_the_same_checksum(layout, fingerprint, caveats):
    cluster = replace(recipe().cluster, gpus_per_node=layout.num_gpus)
    written = recipe(
        layout=layout, cluster=cluster, fingerprint=fingerprint, caveats=tuple(caveats), exports=BUILT.exports[:1]
    )
    data = reread(recipe_yaml(written))
    assert data["checksum"] == checksum(data)
    assert Recipe.from_json(data) == written


def test_recipe_yaml_is_the_same_for_readers_of_both_yaml_versions():
    text = recipe_yaml(recipe(fingerprint={"hash": "12e34", "time": "12:30:00", "octal": "0o17", "word": "no"}))
    assert yaml.safe_load(text) == reread(text)


@pytest.mark.slow
@given(field=st.sampled_from(FIELDS), value=values)
def test_no_value_of_any_field_is_anything_but_read_or_refused(field, value):
    with suppress(InputError):
        Recipe.from_json(recipe().to_json() | {field: value})


def test_the_checksum_sees_every_field_and_a_missing_one_is_named():
    for field in FIELDS[1:]:
        data = recipe().to_json()
        del data[field]
        with pytest.raises(InputError, match=f"{field} is missing"):
            Recipe.from_json(data)
    data = recipe().to_json()
    for name in set(FIELDS) - {"checksum"}:
        assert checksum(data | {name: "other"}) != data["checksum"], name


@pytest.mark.parametrize("trainer", [{}, {"kind": "nosuch"}])
def test_a_recipe_of_no_known_trainer_is_refused(trainer):
    with pytest.raises(InputError, match=r"trainer is .*, not the section of a known trainer"):
        Recipe.from_json(recipe().to_json() | {"trainer": trainer})


def test_a_wrong_number_of_the_model_is_named_with_its_rule():
    data = recipe().to_json()
    with pytest.raises(InputError) as refused:
        Recipe.from_json(data | {"model": data["model"] | {"num_layers": 0}})
    assert refused.value.problems[0].key == "model.num_layers"


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([], "one or more"),
        (None, "runs is None"),
        ([{"trial": "t0001"}], "attempt is missing"),
        ({"step_time_s": "fast"}, "step_time_s is 'fast'"),
        ({"step_time_s": 0}, "step_time_s is 0, not above 0"),
        ({"step_time_low_s": []}, "step_time_low_s is"),
        ({"started_at": "noon"}, "started_at"),
    ],
)
def test_a_recipe_that_rests_on_no_run_is_refused_and_the_field_named(runs, told):
    data = recipe().to_json()
    evidence = data["evidence"]
    changed = [evidence["runs"][0] | runs] if isinstance(runs, dict) else runs
    with pytest.raises(InputError, match=f"evidence: .*{told}"):
        Recipe.from_json(data | {"evidence": evidence | {"runs": changed}})
