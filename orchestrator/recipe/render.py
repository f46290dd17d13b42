"""Renders launch.sh, README.md and env.txt of a recipe. Pure: data to text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dashboards.cost_text import describe_search_cost
from dashboards.trial_text import (
    REPLAYED_VALUE,
    describe_energy,
    describe_expert_tokens,
    describe_fullest_rank,
    describe_host_memory,
    describe_replayed_table,
    describe_step_time,
    describe_training_rate,
    describe_verification,
    format_throughput_interval,
)
from orchestrator.launchers.base import trial_program
from orchestrator.recipe.exports import TITLES, ExportStatus, status_text
from orchestrator.recipe.recipe import Recipe
from search_spaces.adapters import describe_trained
from search_spaces.engines import OWN_ENGINES, PARLAY, is_emulated
from trials.files.text import plural
from trials.ranks.engine_packages import PACKAGED_ENGINES, packages_of
from trials.trial import TrialSpec


def env_txt(environment: Mapping[str, str], removed: Sequence[str] = ()) -> str:
    """`NAME=value` lines, quoted for a shell, and a comment for each variable that was not set."""
    given = [f"{name}={shlex.quote(value)}\n" for name, value in environment.items()]
    return "".join([*given, *(f"# {name} is not set\n" for name in removed)])


def launch_sh(spec: TrialSpec, environment: Mapping[str, str], python: str, replayed_table: str | None = None) -> str:
    """A bash script that starts the trial's program with torchrun. It passes shellcheck.

    `python` is the default interpreter, which PARLAY_PYTHON overrides. Of a replayed table it says that it is untried.
    """
    settings = spec.layout.of_trial
    others = (f"{name}={shlex.quote(value)} " for name, value in environment.items() if name not in settings.env)
    variables = "".join(("env ", *others))
    several_nodes = spec.num_nodes > 1
    return _LAUNCH.format(
        python=shlex.quote(python),
        untried="" if replayed_table is None else f"# {describe_replayed_table(replayed_table)}\n# {_untried(spec)}\n",
        title=shlex.quote(f"{spec.search_id} {spec.trial}"),
        packages=_PACKAGES.get(spec.layout.engine, "PyTorch"),
        no_caches=NO_CACHES.format(script="launch.sh"),
        own_code=" ".join(f"{name}={value}" for name, value in OWN_CODE.items()),
        usage=_USAGE_SEVERAL if several_nodes else _USAGE_ONE,
        run_folder=_RUN_FOLDER_SEVERAL if several_nodes else _RUN_FOLDER_ONE,
        attempt="/".join(shlex.quote(part) for part in ("trials", spec.trial, spec.attempt)),
        variables=variables,
        program=_rank_command(settings.prefix, trial_program(spec)),
        rendezvous=_RENDEZVOUS_SEVERAL.format(nodes=spec.num_nodes) if several_nodes else "--standalone --nnodes 1",
        ranks=min(spec.num_gpus, spec.gpus_per_node),
    )


def _untried(of: TrialSpec | Recipe) -> str:
    engine = of.layout.engine
    if of.trainer["kind"] == PARLAY and engine not in OWN_ENGINES:
        return f"This script is untried, and its ranks refuse the layout: Parlay's own trainer has no engine {engine}."
    return "This script is untried."


def _rank_command(prefix: Sequence[str], program: str) -> str:
    """Command that torchrun starts. The trial's variables are set for the ranks alone: torchrun has its own, and sets
    OMP_NUM_THREADS where it is not set."""
    return f'--no-python {shlex.join(prefix)} "$python" -m {program}' if prefix else f"-m {program}"


_PACKAGES = {"deepspeed": "PyTorch and DeepSpeed"} | {
    engine: " and ".join(["PyTorch", *packages_of(engine)]) for engine in PACKAGED_ENGINES
}
"""Packages that an engine of Parlay's trainer needs, where it is not torch's."""
OWN_CODE = {"PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
"""Variables with which Python imports the recipe's code, and leaves no compiled files beside it."""
NO_CACHES = """\
if [ -n "$(find "$here/code" -name __pycache__ -print -quit)" ]; then
    echo "{script}: remove every __pycache__ in $here/code: no checksum covers compiled files" >&2
    exit 2
fi"""
_LAUNCH = """\
#!/usr/bin/env bash
{untried}\
# Trains with the layout in recipe.yaml for as many steps as a measurement takes, from code/. Needs {packages}{usage}
# PARLAY_PYTHON names the interpreter (default: {python}).
set -euo pipefail

here=$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)
python=${{PARLAY_PYTHON:-{python}}}
case $python in
    */*) python=$(cd -- "$(dirname -- "$python")" && pwd)/$(basename -- "$python") ;;
esac
{no_caches}
{run_folder}
mkdir -p -- "$run"
run=$(cd -- "$run" && pwd)
attempt=$run/{attempt}
mkdir -p -- "$attempt"
cp -- "$here/spec.json" "$attempt/spec.json"

export PYTHONPATH=$here/code {own_code}

cd -- "$attempt"
{variables}"$python" -m torch.distributed.run \\
    {rendezvous} --nproc-per-node {ranks} \\
    {program} "$attempt/spec.json"

echo {title} "wrote $attempt/outcome.r0.json"
"""
_USAGE_ONE = """.
# Usage: launch.sh [FOLDER]   FOLDER must not exist yet (default: run-<time> in the current folder)."""
_USAGE_SEVERAL = """.
# Usage, on every node: NODE_RANK=<0, 1, ...> MASTER_ADDR=<node 0> launch.sh FOLDER
# FOLDER is new, the same on all nodes, and on a file system they share."""
_RUN_FOLDER_ONE = """\
run=${1:-run-$(date -u +%Y%m%dT%H%M%SZ)}
if [ -e "$run" ]; then
    echo "launch.sh: $run exists; name a new folder" >&2
    exit 2
fi"""
_RUN_FOLDER_SEVERAL = """\
run=${1:?name a new folder that all nodes share}
: "${NODE_RANK:?the number of this node, from 0}" "${MASTER_ADDR:?the address of node 0}\""""
_RENDEZVOUS_SEVERAL = """\
--nnodes {nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "${{MASTER_PORT:-29500}}"\
"""


def readme(recipe: Recipe) -> str:
    """README.md: the result, the comparison, its confidence, what would change it, and how to start the training."""
    of_layout = f"{recipe.measured.tokens_per_sec:,.0f} tokens/s"
    headline = recipe.verdict["headline"] if recipe.verdict else of_layout
    sections = [
        f"# {recipe.search_id}: {headline}",
        *_origin(recipe),
        "\n".join(_facts(recipe)),
        "## Comparison\n\n" + "\n".join(_comparison(recipe)),
        *_pareto_front(recipe),
        "## Confidence\n\n" + "\n".join(f"- {line}" for line in _confidence(recipe)),
        "## What would change it\n\n" + _WOULD_CHANGE.format(again="" if recipe.replayed_table else " again"),
        "## Start your training\n\n" + "\n\n".join(_start_commands(recipe)),
        "## Files\n\n" + "\n".join(f"- {line}" for line in _files(recipe)),
    ]
    return "\n\n".join(sections) + "\n"


_WOULD_CHANGE = """\
Another model, sequence length, global batch, precision, number of GPUs, interconnect, or version of PyTorch or of the
engine: each can make another layout the fastest. `parlay replay` on this folder measures the layout{again} here and
says whether the speed holds, and what differs."""


def _origin(recipe: Recipe) -> Iterator[str]:
    if recipe.replayed_table is not None:
        yield describe_replayed_table(recipe.replayed_table)


def _facts(recipe: Recipe) -> Iterator[str]:
    layout, batch, cluster = recipe.layout, recipe.batch, recipe.cluster
    gib = recipe.measured.peak_memory_gib
    peak = "" if gib is None else f", {gib:.2f} GiB at the peak on the fullest rank"
    yield f"Layout `{layout.key}` (trial {recipe.trial}), {recipe.measured.tokens_per_sec:,.0f} tokens/s:"
    yield ""
    yield (
        f"- {layout.shape} = "
        f"{layout.num_gpus} ranks, on {layout.num_nodes} x {cluster.gpus_per_node} {cluster.accelerator.name}"
    )
    yield (
        f"- micro batch {batch['micro_batch_size']} x accumulation {batch['grad_accum_steps']} x data "
        f"{batch['data_parallel']} = {batch['global_batch_size']} sequences of {recipe.model.seq_length} tokens, "
        f"{batch['tokens_per_step']:,} tokens a step"
    )
    yield f"- engine {layout.engine}, {layout.precision}, ZeRO {layout.zero_stage}, schedule {layout.pipeline_schedule}"
    if (words := describe_trained(recipe.model)) is not None:
        yield f"- {words}"
    yield f"- {recipe.model.parameters:,} parameters, {recipe.measured.step_time_s:.4g} s a step{peak}"
    yield f"- {describe_training_rate(recipe.training_rate)}"
    if recipe.cost is not None and (words := describe_search_cost(recipe.cost)) is not None:
        yield f"- {words}"
    yield from (f"- {words}" for words in _memory_lines(recipe))
    if (words := describe_step_time(recipe.measured.time_s)) is not None:
        yield f"- {words}"
    if (words := describe_energy(recipe.measured)) is not None:
        yield f"- {words}"
    yield f"- {describe_verification(recipe.verified)}"
    if recipe.replayed_table is not None:
        return
    yield f"- trained on {_data(recipe)}"
    if recipe.routing is not None:
        loads = describe_expert_tokens(recipe.measured) or "loads of experts were not counted"
        yield f"- routing of experts {recipe.routing}; {loads}"


def _memory_lines(recipe: Recipe) -> Iterator[str]:
    """Memory that is left of a rank's and of a node's, and what takes the rest, measured and predicted."""
    if (words := describe_fullest_rank(recipe.memory["fullest_rank"])) is not None:
        yield words
    predicted = recipe.memory["predicted_gib"]
    least = _LEAST_SHOWN_SHARE * sum(predicted.values())
    shown = ", ".join(f"{name.replace('_', ' ')} {gib:.3g}" for name, gib in predicted.items() if gib > least)
    if shown:
        yield f"predicted for a rank of the fullest stage, in GiB: {shown}"
    if (words := describe_host_memory(recipe.measured)) is not None:
        yield words


def _data(recipe: Recipe) -> str:
    kind, data = recipe.trainer["kind"], recipe.trainer.get("data", {})
    if kind != PARLAY:
        return f"the data in the arguments of {kind}"
    if data.get("kind") != "tokens":
        return "synthetic tokens, without data loading"
    tokens = f"the {data['num_tokens']:,} tokens of {data['path']} ({data['checksum']}), including data loading"
    length = recipe.measured.document_length
    return tokens if length is None else f"{tokens}; attention within documents, which have {length:,.0f} tokens{_MEAN}"


_MEAN = " (a mean over the tokens)"


def _confidence(recipe: Recipe) -> Iterator[str]:
    if recipe.rationale is not None:
        yield f"{recipe.rationale}."
    if (interval := format_throughput_interval(recipe.measured)) is not None:
        yield f"95 % confidence interval{_runs_of_interval(recipe)}: {interval} tokens/s."
    yield REPLAYED_VALUE if recipe.replayed_table else f"Based on {plural(recipe.repeats, 'run')}."
    baseline = recipe.baseline
    if baseline is not None and baseline["layout_key"] != recipe.layout.key and (times := _interval(baseline)):
        yield f"Over the baseline: 95 % confidence interval {times}x."
    yield from (words for words in recipe.caveats if words not in _origin(recipe))


def _runs_of_interval(recipe: Recipe) -> str:
    if recipe.replayed_table is not None:
        return ""
    return " over the steps of one run" if recipe.repeats == 1 else f" over the medians of {recipe.repeats} runs"


def _comparison(recipe: Recipe) -> Iterator[str]:
    if not recipe.compared_with:
        yield "No other layout was measured."
        return
    yield "| trial | layout | tokens/s | this layout's speed over it |"
    yield "|---|---|---|---|"
    for other in recipe.compared_with[:_SHOWN]:
        yield f"| {_name(recipe, other)} | `{other['layout_key']}` | {other['tokens_per_sec']:,.0f} | {_times(other)} |"
    if len(recipe.compared_with) > _SHOWN:
        yield ""
        yield f"And {len(recipe.compared_with) - _SHOWN} more in recipe.yaml; every trial is in evidence.json."


def _pareto_front(recipe: Recipe) -> Iterator[str]:
    """Section with the Pareto front, if it has several layouts."""
    if len(recipe.pareto) < 2:
        return
    names = list(recipe.pareto[0].values)
    rows = [f"| trial | nodes | layout | {' | '.join(names)} |", "|---|---|---|" + "---|" * len(names)]
    for point in recipe.pareto:
        name = f"{point.trial} (this one)" if point.trial == recipe.trial else point.trial
        values = " | ".join(_rounded(point.values[objective]) for objective in names)
        rows.append(f"| {name} | {point.num_nodes} | `{point.layout.key}` | {values} |")
    yield "## Pareto front\n\nNone of these layouts is better than another in all objectives.\n\n" + "\n".join(rows)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


_SHOWN = 10
_LEAST_SHOWN_SHARE = 0.01


def _name(recipe: Recipe, other: Mapping[str, Any]) -> str:
    is_fastest = recipe.fastest is not None and other["trial"] == recipe.fastest.trial
    marks = {"baseline": other["baseline"], "fastest": is_fastest, "tie": other["trial"] in recipe.ties}
    words = ", ".join(word for word, holds in marks.items() if holds)
    return f"{other['trial']} ({words})" if words else other["trial"]


def _times(other: Mapping[str, Any]) -> str:
    interval = _interval(other)
    return f"{other['speedup']:.2f}x" + (f" ({interval})" if interval else "")


def _interval(other: Mapping[str, Any]) -> str | None:
    """The 95 % interval of the speedup; None if a run had too few steps for one."""
    low, high = other["speedup_low"], other["speedup_high"]
    return None if low is None or high is None else f"{low:.2f}\N{EN DASH}{high:.2f}"


def _start_commands(recipe: Recipe) -> Iterator[str]:
    """A paragraph for every trainer: its command line, or the rule that keeps it from running the layout."""
    where = "" if recipe.cluster.num_nodes == 1 else ", on every node, with NODE_RANK and MASTER_ADDR set"
    if recipe.start is not None:
        here = "" if recipe.start.startswith("sbatch") else where
        yield (
            f"**As measured**, in this folder{here}, for as many steps as a measurement takes:\n\n    {recipe.start}"
        )
    yield (
        f"The search ran none of the trainers' own lines. Run one in the parent folder of `recipe/`{where}; replace\n"
        "the words in capitals. Files that were not measured with their trainer describe the same layout, at an\n"
        "unknown speed; measure it with, for example,\n"
        "`parlay replay recipe --trainer megatron-lm --set trainer.script=pretrain_gpt.py`."
    )
    emulated = is_emulated(recipe.layout.engine, recipe.cluster.accelerator.name)
    for export in recipe.exports:
        if export["unrun_start"] is not None:
            files = ", ".join(f"`{name}`" for name in export["files"])
            status = status_text(ExportStatus(export["status"]), emulated) + _replay_result(export)
            line = f"{status}; this line was not run ({files}):\n\n    {export['unrun_start']}"
            yield f"**{TITLES[export['trainer']]}**, {line}"
    refused = [export for export in recipe.exports if export["status"] == ExportStatus.REFUSED]
    if refused:
        yield "No files, because the trainer cannot run the layout:\n\n" + "\n".join(map(_refusal, refused))


def _replay_result(export: Mapping[str, Any]) -> str:
    """Throughput of the trainer in a replay, if there was one."""
    found = export.get("replayed")
    if found is None:
        return ""
    ratio, low, high = (f"{found[name]:.2f}" for name in ("ratio", "ratio_low", "ratio_high"))
    return f", {found['tokens_per_sec']:,.0f} tokens/s, {ratio} times the recipe's ({low} to {high})"


def _refusal(export: Mapping[str, Any]) -> str:
    return f"- {TITLES[export['trainer']]}: {export['message']} (`{export['rule']}`)."


def _files(recipe: Recipe) -> Iterator[str]:
    yield "`recipe.yaml`: the same as data, with a checksum."
    runs = "It runs the measured program; it is not your training."
    yield (
        "`launch.sh`: trains with this layout by torchrun, from `code/` and `spec.json`, for as many steps as a "
        f"measurement takes. {runs if recipe.replayed_table is None else _untried(recipe)}"
    )
    if str(recipe.launcher.get("kind")).startswith("slurm"):
        yield (
            "`launch.sbatch`: the same as a Slurm job with the measured options and srun line; "
            "`cd` into this folder and `sbatch launch.sbatch`. Its modules and setup script are in this folder."
        )
    if any("command.txt" in export["files"] for export in recipe.exports):
        yield "`command.txt`: the command line of every rank, for as many steps as a measurement takes."
    yield "`env.txt`: the environment variables of the ranks."
    what = "raw step times, nodes, job ids and outcomes" if recipe.replayed_table is None else "the replayed outcomes"
    yield f"`evidence.json`: {what}."
