"""Parts of the command lines that start a recipe's layout, in the parent folder of recipe/. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trials.trial import TrialSpec


def torchrun(spec: TrialSpec, environment: Mapping[str, str] | None = None, unset: Iterable[str] = ()) -> str:
    """torchrun's command line on every node, after variables that it sets or unsets, those of the trial's settings
    included. It numbers ranks node by node, as trials do."""
    nodes = "--standalone"
    if spec.num_nodes > 1:
        nodes = f'--nnodes {spec.num_nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port 29500'
    return f"{with_variables(spec, environment, unset)}torchrun {nodes} --nproc-per-node {ranks_per_node(spec)}"


def with_variables(spec: TrialSpec, environment: Mapping[str, str] | None = None, unset: Iterable[str] = ()) -> str:
    """Beginning of a command line that has these variables and those of the trial's settings; "" without any."""
    settings = spec.layout.of_trial
    given = {**(environment or {}), **settings.given_env}
    assigned = "".join(f"{name}={shlex.quote(value)} " for name, value in given.items())
    return assigned + "".join(f"env -u {name} " for name in (*unset, *settings.removed_env))


def ranks_per_node(spec: TrialSpec) -> int:
    return min(spec.num_gpus, spec.gpus_per_node)


def arguments_from(file: str) -> str:
    return f"$(grep -v '^#' recipe/{file})"


def script_or(spec: TrialSpec, kind: str, otherwise: str) -> str:
    """The search's script if it used this kind of trainer, else `otherwise`."""
    return shlex.quote(spec.trainer["script"]) if spec.trainer["kind"] == kind else otherwise


def user_arguments(spec: TrialSpec, kind: str) -> str:
    """The search's arguments if it used this kind of trainer, and a placeholder for others."""
    is_own = spec.trainer["kind"] == kind
    return shlex.join([*spec.trainer.get("arguments", ()), "YOUR_OPTIONS"]) if is_own else "YOUR_OPTIONS"


def own_arguments(spec: TrialSpec, kind: str) -> str:
    """The search's arguments after a space if it used this kind of trainer and has some."""
    given = spec.trainer.get("arguments", ()) if spec.trainer["kind"] == kind else ()
    return f" {shlex.join(given)}" if given else ""


def user_template(spec: TrialSpec, kind: str) -> Mapping[str, Any]:
    """The search's template if it used this kind of trainer, else no keys."""
    return spec.trainer["template"] if spec.trainer["kind"] == kind else {}


def option_lines(options: Iterable[Sequence[str]]) -> str:
    """One option per line; no value needs quotes."""
    return "".join(" ".join(option) + "\n" for option in options)
