"""From JSON lines to a recipe: prepare, run with a profile, and replay as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.orchestrator.cli.parlay import TINY_SEARCH, parlay, parlay_here, write_search
from trials.data.token_file import read_token_header

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ON_TOKENS = TINY_SEARCH.replace("vocab_size: 64", "vocab_size: 258").replace("max_trials: 3", "max_trials: 1")
ON_TOKENS = ON_TOKENS.replace("ci_relative_width: 1.0", "ci_relative_width: 1.0, profile: true")
ON_TOKENS += "tracking: {enabled: false}\ntrainer: {data: {kind: tokens, path: data/tokens.bin}}\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search on prepared tokens, its folder and what the command answered."""
    place = tmp_path_factory.mktemp("finished")
    (place / "data").mkdir()
    lines = [json.dumps({"text": f"line {i} of a text"}) for i in range(100)]
    (place / "a.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_HOME", str(place / "home"))
        words = ("--tokenizer", "bytes", "--append-eos", "--out", "data/tokens.bin")
        assert parlay_here("prepare", "a.jsonl", *words, cwd=place).code == 0
        answer = parlay("run", write_search(place, ON_TOKENS), "--json", cwd=place, timeout_s=240)
    assert answer.code == 0, answer.err
    return place, answer.json


def recipe_of(answer) -> Path:
    return Path(answer["recipe"])


def test_the_recipe_names_the_tokens_it_was_measured_on(finished):
    place, answer = finished
    path = place / "data" / "tokens.bin"
    header = read_token_header(path)
    data = {"kind": "tokens", "path": str(path), "num_tokens": header.num_tokens, "checksum": header.checksum}
    recipe = yaml.safe_load((recipe_of(answer) / "recipe.yaml").read_text())
    assert recipe["trainer"]["data"] == data
    assert 0 <= recipe["measured"]["data_wait_s"] < recipe["measured"]["step_time_s"]
    readme = (recipe_of(answer) / "README.md").read_text()
    assert f"the {header.num_tokens:,} tokens of {path} ({header.checksum})" in readme


def test_where_a_steps_time_goes_is_in_the_answer_and_on_the_recipes_page(finished):
    _, answer = finished
    recipe = yaml.safe_load((recipe_of(answer) / "recipe.yaml").read_text())
    assert answer["best"]["time_s"] == recipe["measured"]["time_s"]
    assert sum(answer["best"]["time_s"].values()) == pytest.approx(recipe["measured"]["step_time_s"])
    assert "\n- step time: " in (recipe_of(answer) / "README.md").read_text()


@pytest.mark.walks
def test_a_replay_trains_on_the_same_tokens(finished):
    place, answer = finished
    replayed = parlay("replay", answer["recipe"], "--repeats", "1", "--sessions", "1", "--json", cwd=place)
    assert replayed.json["verdict"] in ("reproduced", "slower", "faster", "inconclusive"), replayed.err
    assert replayed.json["measured"] > 0
    (outcome,) = place.glob("runs/replay-*/trials/*/*/spec.json")
    assert json.loads(outcome.read_text())["trainer"]["data"]["path"] == str(place / "data" / "tokens.bin")


@pytest.mark.parametrize(("fate", "words"), [("gone", "No such file"), ("changed", "is another file than it was")])
def test_a_replay_without_those_tokens_is_impossible_and_launches_nothing(finished, tmp_path, fate, words):
    place, answer = finished
    path = place / "data" / "tokens.bin"
    shutil.move(path, tmp_path / "kept.bin")
    try:
        if fate == "changed":
            more = ("--tokenizer", "bytes", "--limit", "50", "--out", str(path))
            assert parlay_here("prepare", "a.jsonl", *more, cwd=place).code == 0
        replayed = parlay_here("replay", answer["recipe"], "--work-dir", tmp_path, "--json", cwd=place)
    finally:
        shutil.move(tmp_path / "kept.bin", path)
    assert (replayed.code, replayed.json["verdict"]) == (12, "impossible")
    assert words in replayed.json["detail"]
    assert not list(tmp_path.glob("replay-*"))


def test_a_search_whose_tokens_are_gone_is_refused_before_anything_is_written(finished, tmp_path):
    write_search(tmp_path, ON_TOKENS)
    for verb in ("plan", "run", "submit"):
        answer = parlay_here(verb, "search.yaml", "--json", cwd=tmp_path)
        assert answer.code == 2
        assert (answer.json["error"]["code"], answer.json["error"]["key"]) == ("token_file", "trainer.data.path")
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]
