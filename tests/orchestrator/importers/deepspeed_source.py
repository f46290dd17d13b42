"""Keys of the installed DeepSpeed's configuration, read from its source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_CLASSES = {
    "runtime/zero/config.py": {"DeepSpeedZeroConfig": "zero_optimization"},
    "runtime/zero/offload_config.py": {
        "DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param",
        "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer",
    },
    "runtime/precision_config.py": {"DeepSpeedBF16Config": "bf16", "DeepSpeedFP16Config": "fp16"},
    "runtime/tensor_parallel/config.py": {"TPTrainingConfig": "tensor_parallel"},
    "compile/config.py": {"CompileConfig": "compile"},
}
"""Sections that DeepSpeed declares as classes."""
_REMOVED = {"_REMOVED_TOP_LEVEL_CONFIG_KEYS": "", "_REMOVED_ZERO_CONFIG_KEYS": "zero_optimization."}


def keys_of_classes() -> set[str]:
    """Fields and aliases of the sections that are classes."""
    return {
        f"{sections[each.name]}.{name}"
        for file, sections in _CLASSES.items()
        for each in _body(file)
        if isinstance(each, ast.ClassDef) and each.name in sections
        for name in _fields(each)
    }


def removed_keys() -> set[str]:
    """Keys that DeepSpeed had and now refuses."""
    return {
        _REMOVED[name] + key
        for name, value in _assigned("runtime/config.py")
        if name in _REMOVED and isinstance(value, ast.Dict)
        for key in map(_text, value.keys)
        if key is not None
    }


def top_keys() -> set[str]:
    """Keys that DeepSpeed asks its whole configuration for."""
    constants = {name: _text(value) for name, value in _assigned("runtime/constants.py")}
    asked = (_asked(node) for node in ast.walk(ast.Module(_body("runtime/config.py"), [])))
    names = {constants.get(each.id) if isinstance(each, ast.Name) else _text(each) for each in asked if each}
    return {name for name in names if name is not None}


def _asked(node: ast.AST) -> ast.expr | None:
    """The key in `param_dict.get(KEY, ...)` and `get_scalar_param(param_dict, KEY, ...)`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "param_dict.get":
        return node.args[0]
    is_scalar = isinstance(node, ast.Call) and ast.unparse(node.func) == "get_scalar_param"
    return node.args[1] if is_scalar and ast.unparse(node.args[0]) == "param_dict" else None


def _fields(declared: ast.ClassDef) -> Iterator[str]:
    for each in declared.body:
        if isinstance(each, ast.AnnAssign):
            yield ast.unparse(each.target)
            keywords = each.value.keywords if isinstance(each.value, ast.Call) else []
            yield from (ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg == "alias")


def _assigned(file: str) -> Iterator[tuple[str, ast.expr]]:
    for each in _body(file):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            yield each.targets[0].id, each.value


def _text(value: ast.expr | None) -> str | None:
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _body(file: str) -> list[ast.stmt]:
    spec = find_spec("deepspeed")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse((Path(spec.origin).parent / file).read_text()).body
