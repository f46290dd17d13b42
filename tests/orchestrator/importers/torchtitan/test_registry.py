"""The tables of the importer, compared with the installed torchtitan."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orchestrator.importers.torchtitan.options import TORCHTITAN_OPTIONS
from orchestrator.importers.torchtitan.registry import (
    CONFIGS,
    DEFAULTS,
    FLAVORS,
    OTHER_MODULES,
    REFUSED_CONFIGS,
    flavor,
)
from tests.sources import ROOT
from tests.trials.train.parity import needs_torchtitan

pytestmark = [needs_torchtitan, pytest.mark.slow, pytest.mark.processes]

OURS = {"activation_checkpoint", "activation_checkpoint.layers"}
"""The policy's name, which a command has as `activation-checkpoint:full`, and the argument of the exports' policy."""
POLICIES = {"selective": "SelectiveAC.Config", "full": "FullAC.Config"}
PRODUCTS = ("Linear.Config", "Float8Linear.Config", "MXFP8Linear.Config")
ATTENTION = {"flex": "FlexAttention.Config", "varlen": "VarlenAttention.Config"}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    answer = tmp_path_factory.mktemp("package") / "answer.json"
    program = "tests.orchestrator.importers.torchtitan.package"
    done = subprocess.run([sys.executable, "-m", program, str(answer)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(answer.read_text())


def test_every_option_function_flavor_and_default_is_torchtitans(package):
    named = {name for name in TORCHTITAN_OPTIONS.group_of if not name.startswith("model_spec.")}
    assert named - OURS == {*package["options"]}
    assert {*CONFIGS, *REFUSED_CONFIGS} == {*package["functions"]}
    assert CONFIGS.keys() <= package["configs"].keys()
    assert {*OTHER_MODULES, "llama3"} == {*package["modules"]}
    options = {name: value for name, value in DEFAULTS.items() if name not in OURS}
    assert options == {name: package["defaults"][name] for name in options}
    assert POLICIES[DEFAULTS["activation_checkpoint"]] == package["recomputation"]
    assert {*FLAVORS} == package["flavors"].keys()
    for name, sizes in package["flavors"].items():
        found = flavor(name)
        assert {key: found[f"model_spec.{key}"] for key in sizes} == sizes


@pytest.mark.parametrize("name", CONFIGS)
def test_a_function_of_the_registry_gives_what_the_table_says(name, package):
    theirs, ours = package["configs"][name], {**DEFAULTS, **CONFIGS[name]}
    options = {key: value for key, value in ours.items() if key not in OURS and not key.startswith("model_spec.")}
    assert options == {key: theirs[key] for key in options}
    assert ("loss.num_chunks" in theirs) == ("loss.num_chunks" in options)
    assert POLICIES[ours["activation_checkpoint"]] == theirs["recomputation"]
    assert {key: ours[f"model_spec.{key}"] for key in theirs["model"]} == theirs["model"]
    assert ATTENTION[ours["model_spec.attn_backend"]] == theirs["attention"]
    of_blocks = "mxfp8" if "model_spec.mxfp8.fqns" in ours else None
    recipe, kept = ours.get("model_spec.float8.recipe_name", of_blocks), ours.get("model_spec.float8.filter_fqns", [])
    assert theirs["products"] == {name: None if name in kept else recipe for name in theirs["products"]}
    assert ("model_spec.tp_gemm_backend" in ours) == (theirs["projection"] not in PRODUCTS)
