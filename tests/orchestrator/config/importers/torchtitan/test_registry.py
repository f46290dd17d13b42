"""The tables of the importer and of the export, compared with the installed torchtitan."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orchestrator.config.importers.settings import flat
from orchestrator.config.importers.torchtitan.config import as_settings, imported_settings
from orchestrator.config.importers.torchtitan.registry import CONFIGS, DEFAULTS, refusal
from orchestrator.config.importers.torchtitan.saved import read_saved_config
from tests.orchestrator.config.importers.torchtitan.test_command import SPEC
from tests.sources import ROOT
from tests.trials.train.parity import needs_torchtitan
from trials.trainers.torchtitan.config import TORCHTITAN_TABLE

pytestmark = [needs_torchtitan, pytest.mark.slow, pytest.mark.processes]

PRODUCTS = ("Linear.Config", "Float8Linear.Config", "MXFP8Linear.Config")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    answer = tmp_path_factory.mktemp("package") / "answer.json"
    program = "tests.orchestrator.config.importers.torchtitan.package"
    done = subprocess.run([sys.executable, "-m", program, str(answer)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(answer.read_text())


def test_other_modules_and_functions_are_refused(package):
    assert {*package["functions"]} == {*CONFIGS, *filter(refusal, package["functions"])}
    assert [name for name in package["modules"] if not refusal(name)] == ["llama3"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_function_of_the_registry_gives_what_the_table_says(name, package):
    theirs, ours = package["configs"][name], {**DEFAULTS, **CONFIGS[name]}
    values = flat(theirs["saved"], TORCHTITAN_TABLE, lambda option: None)
    options = {
        each: value for each, value in ours.items() if each.startswith(("compile.", "parallelism.", "training."))
    }
    assert options == {each: values[each].value for each in options}
    written = (each for each in TORCHTITAN_TABLE.written(SPEC) if each.startswith(("parallelism.", "training.")))
    assert values.keys() >= {*written}
    assert ("loss.num_chunks" in values) == ("loss.num_chunks" in ours)
    sections = ("activation_checkpoint.", "compile.", "parallelism.", "training.")
    of_the_release = {each: option for each, option in values.items() if each.startswith(sections)}
    assert imported_settings({**as_settings(ours), **of_the_release}, prefix="--").layout
    found, saved = imported_settings(as_settings(ours)), read_saved_config(json.dumps(theirs["saved"]))
    assert saved.model == found.model
    assert saved.layout == {name: value for name, value in found.layout.items() if name != "matmul_precision"}
    recipe, kept = found.layout.get("matmul_precision", "same"), ours.get("model_spec.float8.filter_fqns", [])
    converted = {each or "same" for name, each in theirs["products"].items() if name not in kept}
    assert converted == {recipe.removeprefix("fp8_")}
    assert [theirs["products"][name] for name in kept] == [None] * len(kept)
    assert ("model_spec.tp_gemm_backend" in ours) == (theirs["projection"] not in PRODUCTS)
