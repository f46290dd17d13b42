"""A name is one thing: no two classes, and no two public functions, of the product share theirs."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.sources import ROOT, modules

FACES = ("orchestrator/cli/", "orchestrator/api/")
"""A verb and a function of the Python API are called as what they do is, which another function does for both."""
IN_TURN = {
    "main": "what a program starts with",
    "emulate_device": "one for each trainer that runs on a CPU in tests",
    "optimizer_config": "one in the configuration of each trainer",
    **dict.fromkeys(
        ("fingerprint", "layout_proof", "require_runnable", "run_rank"),
        "one for ranks of Parlay's own trainer, one for another trainer's",
    ),
}
"""Names of functions that take each other's place, with what they are."""


def test_no_two_classes_or_public_functions_share_a_name():
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for name, is_class in names_in(module):
            if is_class or not (module.startswith(FACES) or name in IN_TURN):
                found[name].append(module)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def names_in(module: str) -> list[tuple[str, bool]]:
    """Public names that a module defines at its top, each with whether it is a class."""
    body = ast.parse((ROOT / module).read_text(encoding="utf-8")).body
    defined = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [(node.name, isinstance(node, ast.ClassDef)) for node in defined if not node.name.startswith("_")]
