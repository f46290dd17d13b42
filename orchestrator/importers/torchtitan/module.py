"""Import of a Python module with a function that returns torchtitan's Trainer.Config. It is parsed, never run.

Read are calls with literal arguments, as in torchtitan's own registry: names that the function has given them before,
and options that it sets afterwards. What the module computes is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.option_table import Handling
from orchestrator.importers.settings import CODE, Setting
from orchestrator.importers.torchtitan.config import imported_settings, settings_of
from orchestrator.importers.torchtitan.fields import CONVERTED, FLOAT8
from orchestrator.importers.torchtitan.options import TORCHTITAN_OPTIONS
from orchestrator.importers.torchtitan.registry import CONFIGS, FLAVORS, REFUSED_CONFIGS, flavor
from search_spaces.errors import InputError
from trials.trainers.torchtitan import config

Given = dict[str, Setting]

_FIX = "give a module with a function that returns Trainer.Config(...), or the configuration that torchtitan saves"
_COMPUTED = "the module computes it"
_DEFAULTS_OF_CONVERTERS = {
    config.FLOAT8: (f"{FLOAT8}recipe_name", "rowwise"),
    **{name: (CONVERTED[word], []) for word, name in config.CONVERTERS.items()},
}
"""Setting that each converter of linear layers decides, and its default."""
_POLICIES = {"SelectiveAC": "selective", "FullAC": "full", "FirstLayersAC": "full", "MemoryBudgetAC": "memory-budget"}
_DECIDING = [
    name for name, group in TORCHTITAN_OPTIONS.group_of.items() if group.handling in (Handling.READ, Handling.REFUSED)
]
_SIZES = {name for name in TORCHTITAN_OPTIONS.group_of if name.startswith("model_spec.")}


def read_module(text: str, function: str | None = None) -> ImportedConfig:
    """The values of the module's function, by default the only one that returns a configuration.

    InputError as `module_settings` and `imported_settings` say.
    """
    return imported_settings(module_settings(text, function))


def module_settings(text: str, function: str | None = None) -> Given:
    """The settings of the function; InputError for text that is no Python, and where it cannot be read."""
    functions = {found.name: found for found in _functions(text) if _returned(found) is not None}
    if function is None and len(functions) == 1:
        (function,) = functions
    if function not in functions:
        names = ", ".join(functions)
        message = f"has several functions that return one: {names}" if names else "has no function that returns one"
        if function is not None:
            message = f"has no function {function} that returns one"
        raise InputError.of(CODE, message, rule="a module's function returns torchtitan's Trainer.Config", fix=_FIX)
    return _Function(functions[function], functions).settings()


def _functions(text: str) -> Iterator[ast.FunctionDef]:
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        where = f" (line {line})" if line else ""
        raise InputError.of(CODE, f"is no Python{where}", rule="a module is Python", fix=_FIX) from None
    for statement in body:
        _require_registry_of_llama3(statement)
    return (each for each in body if isinstance(each, ast.FunctionDef))


def _require_registry_of_llama3(statement: ast.stmt) -> None:
    """InputError for another model's registry, whose flavors have the same names."""
    if not isinstance(statement, ast.ImportFrom) or all(each.name != "model_registry" for each in statement.names):
        return
    if statement.level == 0 and statement.module != "torchtitan.models.llama3":
        message = f"takes model_registry from {statement.module}"
        rule = "the flavors that can be read are those of torchtitan.models.llama3"
        raise InputError.of(CODE, message, rule=rule, fix=_FIX, line=statement.lineno)


def _returned(function: ast.FunctionDef) -> ast.expr | None:
    """Value that the function's last statement returns, if it may be a configuration."""
    last = function.body[-1]
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    is_call = isinstance(last.value, ast.Call) and _name(last.value.func).endswith("Trainer.Config")
    is_name = isinstance(last.value, ast.Name) and any(map(_may_assign_config, function.body))
    return last.value if is_call or is_name else None


def _may_assign_config(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.Call) and (_name(value.func).endswith("Trainer.Config") or not value.args)


class _Function:
    """One function's statements, from first to last."""

    def __init__(self, function: ast.FunctionDef, others: Mapping[str, ast.FunctionDef], depth: int = 0):
        self._function = function
        self._others = others
        self._depth = depth
        self._named: dict[str, ast.expr] = {}
        self._changed: dict[str, Given] = {}

    def settings(self) -> Given:
        """The settings of what it returns."""
        for statement in self._function.body[:-1]:
            self._read(statement)
        returned = _returned(self._function)
        assert returned is not None
        changed = self._changed.get(returned.id, {}) if isinstance(returned, ast.Name) else {}
        return {**self._config(returned), **changed}

    def _read(self, statement: ast.stmt) -> None:
        """Remember `name = value` and `name.section.option = value`; other statements decide nothing that is read,
        unless they may."""
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name):
                self._named[target.id] = statement.value
                self._changed.pop(target.id, None)
                return
            root, option = _path(target)
            if root and option:
                self._change(root, option, statement.value)
                return
        if not isinstance(statement, (ast.Assert, ast.Expr, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.Pass)):
            raise _unreadable(statement, "calls and assignments of literals are read")

    def _change(self, root: str, option: str, value: ast.expr) -> None:
        changed = self._changed.setdefault(root, {})
        found = dict(self._value(option, value))
        for name in [name for name in changed if name == option or name.startswith(f"{option}.")]:
            del changed[name]
        changed.update(found)

    def _config(self, value: ast.expr) -> Given:
        """The settings of a call of Trainer.Config, or of a function of the registry or of the module."""
        value = self._resolved(value)
        if not isinstance(value, ast.Call):
            raise _unreadable(value, "a function returns Trainer.Config(...)")
        name = _name(value.func)
        if name.endswith("Trainer.Config"):
            return {key: each for keyword in value.keywords for key, each in self._keyword(keyword)}
        if name in REFUSED_CONFIGS:
            raise InputError.of(CODE, f"starts from {name}", rule=REFUSED_CONFIGS[name], fix=_FIX, line=value.lineno)
        if name in self._others and self._depth < len(self._others):
            return _Function(self._others[name], self._others, self._depth + 1).settings()
        if name in CONFIGS:
            return settings_of(CONFIGS[name], f"torchtitan's {name}")
        raise _unreadable(value, "a function starts from Trainer.Config(...) or one of torchtitan's own llama3")

    def _keyword(self, keyword: ast.keyword) -> Iterator[tuple[str, Setting]]:
        if keyword.arg is None:
            raise _unreadable(keyword.value, "every argument has its name")
        yield from self._value(keyword.arg, keyword.value)

    def _value(self, name: str, value: ast.expr) -> Iterator[tuple[str, Setting]]:
        """The settings that an argument of this name stands for."""
        value = self._resolved(value)
        if name == "activation_checkpoint":
            yield from self._policy(value)
        elif name == "model_spec":
            yield from self._model_spec(value)
        elif name not in TORCHTITAN_OPTIONS.sections:
            yield name, _literal(value)
        elif isinstance(value, ast.Call) and _name(value.func).endswith("Config"):
            for keyword in value.keywords:
                yield from self._value(f"{name}.{keyword.arg}", keyword.value)
        elif not (isinstance(value, ast.Call) and _name(value.func) == "default_adamw"):
            decided = (option for option in _DECIDING if option.startswith(f"{name}."))
            yield from ((option, _literal(value)) for option in decided)

    def _policy(self, value: ast.expr) -> Iterator[tuple[str, Setting]]:
        name = "activation_checkpoint"
        if isinstance(value, ast.Constant) and value.value is None:
            yield name, Setting("none", value.lineno)
            return
        called = _name(value.func).removesuffix(".Config").rpartition(".")[2] if isinstance(value, ast.Call) else ""
        if not isinstance(value, ast.Call) or called not in _POLICIES:
            raise _unreadable(value, f"recomputation is None, or one of {', '.join(_POLICIES)}")
        yield name, Setting(_POLICIES[called], value.lineno)
        for keyword in value.keywords:
            yield f"{name}.{keyword.arg}", _literal(self._resolved(keyword.value))

    def _model_spec(self, value: ast.expr) -> Iterator[tuple[str, Setting]]:
        """A flavor of torchtitan's llama3, or the sizes that an exported module has for llama3 or qwen3."""
        if not isinstance(value, ast.Call):
            raise _unreadable(value, "a model is built by model_registry(...) or llama3(...)")
        arguments = {str(keyword.arg): self._resolved(keyword.value) for keyword in value.keywords}
        if _name(value.func).rpartition(".")[2] == "model_registry":
            named = value.args[0] if value.args else arguments.pop("flavor", None)
            text = named.value if isinstance(named, ast.Constant) else None
            if text not in FLAVORS:
                raise _unreadable(value, f"a model is one of torchtitan's llama3: {', '.join(FLAVORS)}")
            sizes = settings_of(flavor(text), f"torchtitan's {text}")
            yield from ((name, replace(each, line=value.lineno)) for name, each in sizes.items())
        elif value.args or not {f"model_spec.{name}" for name in arguments} <= _SIZES:
            raise _unreadable(value, "a model is built by model_registry(...), or as an exported module does")
        else:
            yield "model_spec.name", Setting(_name(value.func), value.lineno)
        for name, argument in arguments.items():
            if name == "converters":
                yield from self._converters(argument)
            else:
                yield f"model_spec.{name}", _literal(argument)

    def _converters(self, value: ast.expr) -> Iterator[tuple[str, Setting]]:
        """The arguments of one converter of linear layers. Of any others the model is another."""
        made = [self._resolved(each) for each in value.elts] if isinstance(value, (ast.List, ast.Tuple)) else [value]
        called = made[0] if len(made) == 1 else None
        name = _name(called.func).removesuffix(".Config").rpartition(".")[2] if isinstance(called, ast.Call) else ""
        if isinstance(called, ast.Call) and not called.args and name in _DEFAULTS_OF_CONVERTERS:
            decided, default = _DEFAULTS_OF_CONVERTERS[name]
            yield decided, Setting(default, called.lineno)
            for keyword in called.keywords:
                yield f"{decided.rpartition('.')[0]}.{keyword.arg}", _literal(self._resolved(keyword.value))
        elif made:
            yield "model_spec.converters", replace(_literal(value), doubt=None)

    def _resolved(self, value: ast.expr) -> ast.expr:
        """The value behind a name that the function has assigned."""
        seen: set[str] = set()
        while isinstance(value, ast.Name) and value.id in self._named and value.id not in seen:
            seen.add(value.id)
            value = self._named[value.id]
        return value


def _literal(value: ast.expr) -> Setting:
    try:
        return Setting(_plain(ast.literal_eval(value)), value.lineno)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return Setting(f"{ast.unparse(value):.60}", value.lineno, doubt=_COMPUTED)


def _plain(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _path(target: ast.expr) -> tuple[str, str]:
    """(name, option) of `name.section.option`; empty for other targets."""
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.insert(0, target.attr)
        target = target.value
    return (target.id, ".".join(names)) if isinstance(target, ast.Name) else ("", "")


def _name(function: ast.expr) -> str:
    """`Trainer.Config` of what is called; empty for what has no dotted name."""
    root, rest = _path(function)
    return f"{root}.{rest}" if rest else root


def _unreadable(node: ast.expr | ast.stmt, rule: str) -> InputError:
    return InputError.of(CODE, "cannot be read without running it", rule=rule, fix=_FIX, line=node.lineno)
