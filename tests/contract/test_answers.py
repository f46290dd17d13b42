"""Every answer has a schema that people can print, and one that is not as its model says is noticed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from orchestrator.cli.prepare import answers
from orchestrator.config.answer import Answer
from tests.contract.answers import assert_as_declared
from tests.orchestrator.cli.parlay import parlay_here
from tests.sources import ROOT, modules


def test_every_answer_prints_its_schema_and_an_unknown_one_names_them_all(tmp_path):
    names = set(answers())
    declared = {kind.name() for kind in _subclasses(Answer)}
    assert declared | {"error"} == names
    assert len(declared) == sum((ROOT / module).read_text().count("    schema_: Literal[") for module in modules())
    for name in answers():
        printed = json.loads(parlay_here("schema", name, cwd=tmp_path).out)
        assert printed["type"] == "object"
        assert name == "error" or printed["properties"]["schema"]["const"] == f"parlay.{name}/1"
    refused = parlay_here("schema", "stats", cwd=tmp_path)
    assert (refused.code, "did you mean status?" in refused.err) == (2, True)
    assert all(name in refused.err for name in answers())


def test_an_answer_with_a_key_too_many_or_too_few_or_another_value_is_noticed():
    whole = {"schema": "parlay.page/1", "address": "http://127.0.0.1:1/"}
    assert_as_declared(whole)
    for wrong in (whole | {"port": 1}, {"schema": "parlay.page/1"}, whole | {"address": 1}):
        with pytest.raises(ValidationError):
            assert_as_declared(wrong)
    with pytest.raises(AssertionError):
        assert_as_declared({"schema": "parlay.submit/1", "search_id": "a-b", "folder": "/a"})


def test_a_command_starts_without_the_models():
    program = "import sys, orchestrator.cli.verbs; sys.exit('orchestrator.config.answer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


def _subclasses(kind: type[Answer]) -> set[type[Answer]]:
    return {one for direct in kind.__subclasses__() for one in {direct, *_subclasses(direct)}}
