"""Small faults for the code of a room, and the selection among them. Pure but for reading the sources."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Room:
    """Number of mutants of some `sources`, and the `tests` that should notice them; both are globs."""

    name: str
    mutants: int
    sources: tuple[str, ...]
    tests: tuple[str, ...]


_OF_THE_COST_MODEL = (
    *("attention", "expert_time", "machine_speed", "posterior", "recomputation", "stage_table", "step_time"),
)
ROOMS = (
    Room("search", 40, ("orchestrator/search/*.py",), ("tests/orchestrator/search/**/test_*.py",)),
    Room("ledger", 25, ("trials/ledger/*.py",), ("tests/trials/ledger/test_*.py", "tests/contracts/test_ledger.py")),
    Room(
        "launchers/slurm",
        30,
        ("orchestrator/launchers/slurm/*.py", "orchestrator/launchers/slurm_pilot/*.py"),
        ("tests/orchestrator/launchers/slurm*/test_*.py", "tests/orchestrator/search/on_slurm/test_*.py"),
    ),
    Room(
        "measurement",
        12,
        tuple(f"trials/measurement/{name}.py" for name in ("metrics", "protocol", "run_variance", "trend")),
        tuple(f"tests/trials/measurement/test_{name}.py" for name in ("metrics", "protocol", "run_variance")),
    ),
    Room(
        "ranking",
        15,
        tuple(f"trials/analysis/{name}.py" for name in ("ranked_layout", "ranking", "pareto", "verdict")),
        tuple(f"tests/trials/analysis/test_{name}.py" for name in ("ranking", "pareto", "verdict")),
    ),
    Room("classify", 10, ("trials/attempt_result.py",), ("tests/trials/test_attempt_result.py",)),
    Room(
        "rules",
        15,
        tuple(f"search_spaces/rules/{name}.py" for name in ("rule", "layout_rules", "engine_rules", "trainer_rules")),
        ("tests/search_spaces/**/test_*.py", "tests/orchestrator/config/test_refusals.py"),
    ),
    Room(
        "memory",
        13,
        ("search_spaces/cost_model/memory.py", "search_spaces/hardware/memory_headroom.py"),
        ("tests/search_spaces/**/test_*.py",),
    ),
    Room(
        "service auth",
        10,
        ("orchestrator/service/middleware.py", "orchestrator/service/quota.py"),
        ("tests/orchestrator/service/test_*.py", "tests/bad_inputs/test_command.py"),
    ),
    Room(
        "exchange",
        12,
        ("orchestrator/records/formats/*.py",),
        ("tests/orchestrator/records/formats/test_*.py", "tests/orchestrator/cli/test_export.py"),
    ),
    Room("recipe", 18, ("orchestrator/recipe/*.py",), ("tests/orchestrator/recipe/test_*.py",)),
    Room(
        "config",
        20,
        ("orchestrator/config/*.py",),
        ("tests/orchestrator/config/**/test_*.py", "tests/bad_inputs/test_*.py"),
    ),
    Room("cli", 20, ("orchestrator/cli/*.py",), ("tests/orchestrator/cli/**/test_*.py", "tests/bad_inputs/test_*.py")),
    Room(
        "importers",
        20,
        ("orchestrator/config/importers/**/*.py",),
        ("tests/orchestrator/config/importers/**/test_*.py", "tests/orchestrator/config/test_init*.py"),
    ),
    Room(
        "exports",
        20,
        ("trials/trainers/**/*.py",),
        ("tests/trials/trainers/**/test_*.py", "tests/orchestrator/recipe/test_*.py"),
    ),
    Room(
        "planning",
        15,
        ("orchestrator/planning/*.py",),
        ("tests/orchestrator/planning/test_*.py",),
    ),
    Room(
        "cost model",
        20,
        tuple(f"search_spaces/cost_model/{name}.py" for name in _OF_THE_COST_MODEL),
        ("tests/search_spaces/**/test_*.py",),
    ),
)

_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_COMPUTED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}
_SWAPPED_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, order=True)
class Mutant:
    """One change: the `operator` applied at its `place`-th occasion in a `function` of a `file`, counted from 0."""

    room: str
    file: str
    function: str
    operator: str
    place: int
    line: int
    before: str
    after: str
    begin: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.file}::{self.function} {self.operator} {self.place}"

    def rank(self, seed: str) -> str:
        """Order of the draw: chance with a seed, and the same wherever the function stands."""
        drawn = f"{seed} {self.function} {self.operator} {self.place} {self.before}"
        return hashlib.sha256(drawn.encode()).hexdigest() + self.file

    def applied(self, source: bytes) -> bytes:
        return source[: self.begin] + self.after.encode() + source[self.end :]


def drawn_mutants(seed: str, root: Path = ROOT) -> list[Mutant]:
    """The draw of a seed: each room's number of mutants, made of the sources under `root`."""
    return [mutant for room in ROOMS for mutant in _in_turn(mutants_of(room, root), seed)[: room.mutants]]


def _in_turn(mutants: Iterable[Mutant], seed: str) -> list[Mutant]:
    """Mutants by rank, one of each operator in turn: else most of the draw would be forgotten returns."""
    seen: Counter[str] = Counter()
    turns = []
    for rank, mutant in sorted((mutant.rank(seed), mutant) for mutant in mutants):
        turns.append((seen[mutant.operator], rank, mutant))
        seen[mutant.operator] += 1
    return [mutant for _, _, mutant in sorted(turns)]


def mutants_of(room: Room, root: Path = ROOT) -> Iterator[Mutant]:
    """Every mutant that can be made of a room's functions."""
    for path in globbed(root, room.sources):
        source = path.read_text(encoding="utf-8")
        file = str(path.relative_to(root))
        starts = _line_starts(source.encode())
        for name, function in _functions(ast.parse(source)):
            seen: Counter[str] = Counter()
            for operator, node, changed in _changes(function):
                begin = starts[node.lineno - 1] + node.col_offset
                end = starts[node.end_lineno - 1] + node.end_col_offset
                before = source.encode()[begin:end].decode()
                place, seen[operator] = seen[operator], seen[operator] + 1
                yield Mutant(room.name, file, name, operator, place, node.lineno, before, changed, begin, end)


def globbed(root: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in root.glob(pattern)})


def _line_starts(source: bytes) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods with their qualified names; one inside another belongs to the outer."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node


def _changes(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """(operator, what is replaced, by what)."""
    for statement in function.body:
        for node in _walk(statement):
            for operator, change in _OPERATORS.items():
                if (changed := change(node)) is not None:
                    place, text = changed
                    yield operator, place, text


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but for what stands in texts, whose places are not told right before Python 3.12."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _compare(node: ast.AST) -> tuple[ast.expr, str] | None:
    """`<` for `<=`, `is` for `is not`, and so on."""
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in _COMPARED:
        return None
    ops = [_COMPARED[type(node.ops[0])](), *node.ops[1:]]
    return node, _text(ast.Compare(node.left, ops, node.comparators))


def _compute(node: ast.AST) -> tuple[ast.expr, str] | None:
    """`+` for `-`, `*` for `/`; not where texts are joined."""
    if not isinstance(node, ast.BinOp) or type(node.op) not in _COMPUTED or _is_text(node.left) or _is_text(node.right):
        return None
    return node, _text(ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))


def _connect(node: ast.AST) -> tuple[ast.expr, str] | None:
    """`and` for `or`."""
    if not isinstance(node, ast.BoolOp):
        return None
    return node, _text(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))


def _negate(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The other branch of a condition."""
    if not isinstance(node, ast.If | ast.While | ast.IfExp) or isinstance(node.test, ast.Compare | ast.Constant):
        return None
    return node.test, f"(not ({ast.unparse(node.test)}))"


def _filter(node: ast.AST) -> tuple[ast.expr, str] | None:
    """A comprehension that leaves nothing out."""
    if not isinstance(node, ast.comprehension) or not node.ifs:
        return None
    return node.ifs[0], "True"


def _number(node: ast.AST) -> tuple[ast.expr, str] | None:
    """One more."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool) or not isinstance(node.value, int | float):
        return None
    return node, repr(node.value + 1)


def _flip(node: ast.AST) -> tuple[ast.expr, str] | None:
    """`True` for `False`."""
    return (node, repr(not node.value)) if isinstance(node, ast.Constant) and isinstance(node.value, bool) else None


def _extreme(node: ast.AST) -> tuple[ast.expr, str] | None:
    """`min` for `max`, `any` for `all`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in _SWAPPED_NAMES:
        return None
    return node.func, _SWAPPED_NAMES[node.func.id]


def _forget(node: ast.AST) -> tuple[ast.stmt, str] | None:
    """A call whose value nobody uses is left out."""
    return (node, "pass") if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None


def _return(node: ast.AST) -> tuple[ast.stmt, str] | None:
    """Nothing is returned."""
    return (node, "return None") if isinstance(node, ast.Return) and not _is_nothing(node.value) else None


_OPERATORS: Mapping[str, Callable[[ast.AST], tuple[ast.expr | ast.stmt, str] | None]] = {
    "compare": _compare,
    "compute": _compute,
    "connect": _connect,
    "negate": _negate,
    "filter": _filter,
    "number": _number,
    "flip": _flip,
    "extreme": _extreme,
    "forget": _forget,
    "return": _return,
}


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_nothing(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)
