"""Every problem in the sources has a rule or a fix."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from tests.sources import calls, calls_among, modules

NEED_NEITHER = {
    ("orchestrator/cli/guard.py", "interrupted"): "the user interrupted",
    ("orchestrator/cli/prepare.py", "interrupted"): "the user interrupted",
    ("orchestrator/cli/guard.py", "refused"): "the system's own words: no space left, permission denied",
    ("orchestrator/service/api.py", "refused"): "the system's own words: no space left, permission denied",
    ("orchestrator/cli/dashboard.py", "mlflow"): "the end of MLflow's own log",
    ("trials/train/program.py", "world"): "a trial's spec, which Parlay wrote and has checked",
    ("trials/train/program.py", "batch"): "a trial's spec, which Parlay wrote and has checked",
    ("trials/train/program.py", "rule"): "a trial's spec, which Parlay wrote and has checked",
}


def bare_problems(calls: Iterable[tuple[str, ast.Call]]) -> Iterator[str]:
    """Codes of the problems that these calls make with neither a rule nor a fix."""
    for name, call in calls:
        named = {keyword.arg for keyword in call.keywords}
        if name in ("Problem", "InputError.of") and len(call.args) < 3 and not named & {"rule", "fix", None}:
            code = call.args[0]
            yield str(code.value) if isinstance(code, ast.Constant) else ast.unparse(code)


def test_every_refusal_has_a_rule_or_a_fix():
    found = Counter((module, code) for module in modules() for code in bare_problems(calls(module)))
    assert found == Counter(NEED_NEITHER.keys())


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        ("InputError.of('a', 'is 0')", ["a"]),
        ("Problem('a', 'is 0', key='b', value=0)", ["a"]),
        ("Problem(code, 'is 0')", ["code"]),
        ("Problem('a', 'is 0')\nProblem('a', 'is 1')", ["a", "a"]),
        ("Problem('a', 'is 0', 'from 1')", []),
        ("InputError.of('a', 'is 0', rule='from 1')", []),
        ("InputError.of('a', 'is 0', fix='write 1')", []),
        ("InputError.of('a', 'is 0', **told)", []),
    ],
)
def test_one_with_neither_would_be_found(source, codes):
    assert list(bare_problems(calls_among(ast.walk(ast.parse(source))))) == codes
