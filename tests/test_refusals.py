"""Every problem in the sources has a rule or a fix."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.sources import calls, modules

NEED_NEITHER = {
    ("orchestrator/cli/endings.py", "interrupted"): "the user interrupted",
    ("orchestrator/cli/endings.py", "refused"): "the system's own words: no space left, permission denied",
    ("orchestrator/cli/look.py", "mlflow"): "the end of MLflow's own log",
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
