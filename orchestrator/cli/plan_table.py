"""Text of a plan: layouts in predicted order, and the cost; with details a diagram of the first, the comparison with
the baseline and rejected layouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dashboards.rank_placement import rank_lines
from dashboards.trial_text import describe_training_rate
from orchestrator.cli.output import align
from orchestrator.cli.plan_answer import MAX_REJECTED_LISTED, describe_upper_limit
from orchestrator.planning.explain import ExplainedLayout, count_fits, explain_layouts, time_saved_s
from orchestrator.planning.plan import ExpectedHours, Plan, stage_memory_gib
from orchestrator.planning.plan_notes import plan_notes
from search_spaces.cost_model.memory import StageMemory, stage_memory
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.layouts.layout import IN_EVERY_KEY, Layout
from trials.analysis.finals import Finals
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from search_spaces.search_space import SearchSpace

DEFAULT_LISTED = 10
"""Layouts listed without --top."""
_MAX_STAGES = 8
_MIN_SHARE = 0.005


def plan_text(
    plan: Plan, spec: SearchSpec, space: SearchSpace, top: int | None, list_rejected: bool, has_details: bool
) -> str:
    """Text of `parlay plan`: `top` layouts and the cost; with details the diagram of the first, the breakdown of time
    and memory, and an example of each rule that rejects layouts."""
    lines = [
        *_layout_lines(plan, DEFAULT_LISTED if top is None else top, space.baseline, has_details),
        *(f"note: {note}" for note in plan_notes(plan)),
        *(_detail_lines(plan, spec, space) if has_details else ()),
        *_rejected_lines(space, has_details, list_rejected),
        _format_hours(plan.expected, spec),
        describe_upper_limit(spec, space),
    ]
    return "\n".join(lines)


def _detail_lines(plan: Plan, spec: SearchSpec, space: SearchSpace) -> Iterator[str]:
    cluster, first = spec.cluster, plan.layouts[0]
    placed = rank_lines(first, cluster.gpus_per_node, cluster.nodes_per_domain(first.num_nodes))
    yield from ("", f"the first of them, {first.key}:")
    yield from (f"  {line}" for line in (*placed, *_stage_lines(plan)))
    yield from ("", *_explanation_lines(plan, space.baseline), "")


def _layout_lines(plan: Plan, top: int, baseline: Layout | None, has_details: bool) -> Iterator[str]:
    count = len(plan.layouts)
    ranks = int(plan.layouts.num_gpus.max())
    yield f"{plural(count, 'layout')} can be tried on {plural(ranks, 'rank')}, by expected speed and fit probability:"
    rows = _listed_rows(plan, top, baseline)
    common, names = split_common_parts([plan.layouts[row] for row in rows])
    if common:
        yield f"  all have {common}"
    listed = [_headings(plan, has_details)]
    for row, name, plain in zip(rows, names, plan.plain_rows(np.array(rows)), strict=True):
        mark = " (the baseline)" if plan.layouts[row] == baseline else ""
        details = f"{_unverified(plain)}; {_shares(plan, row)}" if has_details else ""
        listed.append([str(row + 1), *_numbers(plain, has_details), f"{name}{mark}{details}"])
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    for *numbers, name in listed:
        yield f"  {'  '.join(map(str.rjust, numbers, widths))}  {name}"
    more = [f"{count - len(rows)} more (--top N lists N)"] if len(rows) < count else []
    if more or not has_details:
        yield f"  {'; '.join([*more, *([] if has_details else ['--details: intervals, time and memory by part'])])}"


def _headings(plan: Plan, has_details: bool) -> list[str]:
    speeds = ["s/step", *(["95 %"] if has_details else []), "tokens/s", *(["MFU"] if has_details else [])]
    usable_gib = plan.task.usable_gib
    gib = "peak GiB" + ("" if usable_gib is None else f" of {usable_gib:.4g}")
    name = "layout; time by component" if has_details else "layout"
    return ["#", *(speeds if plan.speed_is_known else ["time"]), "fits", gib, name]


def _listed_rows(plan: Plan, top: int, baseline: Layout | None) -> list[int]:
    """The first rows, and the baseline's own."""
    rows = list(range(min(top, len(plan.layouts))))
    place = plan.layouts.index(baseline) if baseline in plan.layouts else 0
    return rows if place in rows or baseline is None else [*rows, place]


def _numbers(row: Mapping[str, Any], has_details: bool) -> list[str]:
    speeds = [f"{row['relative_step_time']:.3f}x"]
    if row["step_time_s"] is not None:
        speeds = [f"{row['step_time_s']:.4g}", f"{row['tokens_per_sec']:.0f}"]
        if has_details:
            speeds.insert(1, f"{row['step_time_low_s']:.3g} to {row['step_time_high_s']:.3g}")
            speeds.append("" if row["mfu"] is None else f"{row['mfu']:.1%}")
    return [*speeds, row["fits"] or "-", f"{row['peak_memory_gib']:.4g}"]


def split_common_parts(layouts: Sequence[Layout]) -> tuple[str, list[str]]:
    """Split the layouts' keys into their common part and the rest of each."""
    keys = [layout.key_parts for layout in layouts]
    common = [name for name in IN_EVERY_KEY if len({key[name] for key in keys}) == 1]
    if len(common) == len(IN_EVERY_KEY):
        return "", [layout.key for layout in layouts]
    own = [" ".join(part for name, part in key.items() if name not in common) for key in keys]
    return " ".join(keys[0][name] for name in common), own


def _unverified(row: Mapping[str, Any]) -> str:
    """The layout's level of verification where no test trained some of its values."""
    return f" ({row['verified']['level']})" if row["verified"]["values"] else ""


def _shares(plan: Plan, row: int) -> str:
    """Time shares of a layout, largest first."""
    whole = plan.estimates.step_time_s[row]
    shares = {name: float(seconds[row] / whole) for name, seconds in plan.time_s.items()}
    largest = sorted((share, name) for name, share in shares.items() if share >= _MIN_SHARE)
    return ", ".join(f"{name} {share:.0%}" for share, name in reversed(largest))


def _stage_lines(plan: Plan) -> Iterator[str]:
    """Memory of a rank on each stage; of many stages the first three and the last two."""
    stages = StageTable.of_layout(plan.task.model, plan.layouts[0])
    first = plan.layouts.take(np.array([0]))
    parts = stage_memory(plan.task.model, first, stages, plan.task.expert_skew)
    names = [name for name in StageMemory.__dataclass_fields__ if getattr(parts, name).any()]
    peaks = stage_memory_gib(plan.task, first)[0]
    yield "GiB per rank; the peak includes allocator overhead:"
    rows = [["stage", "layers", *names, "peak"]]
    for before, index in pairwise([-1, *_shown_stages(stages.layers.shape[1])]):
        if index > before + 1:
            rows.append(["..."] + [""] * (len(names) + 2))
        gib = [f"{getattr(parts, name)[0, index]:.3f}" for name in names]
        rows.append([str(index), f"{stages.layers[0, index]:g}", *gib, f"{peaks[index]:.3f}"])
    yield from (f"  {line}" for line in align(*rows))


def _shown_stages(count: int) -> list[int]:
    return list(range(count)) if count <= _MAX_STAGES else [0, 1, 2, count - 2, count - 1]


def _explanation_lines(plan: Plan, baseline: Layout | None) -> Iterator[str]:
    """Step time and memory of the first layout and of the baseline, broken down side by side."""
    rows = explain_layouts(plan, baseline)
    place = None if baseline is None else plan.layouts.index(baseline) + 1
    if baseline is None or place == 1:
        yield "predicted for the first layout" + (":" if place is None else ", which is the baseline:")
    else:
        yield f"predicted for the first layout and the baseline, {baseline.key}, number {place}:"
    saved = time_saved_s(plan, baseline) if len(rows) > 1 else None
    for table in (_time_rows(plan, rows, saved), _memory_rows(rows)):
        yield from (f"  {line}" for line in align(*table))
    if (fit := count_fits(plan)) is not None and plan.task.usable_gib is not None:
        words = ", ".join(f"{word} {count}" for word, count in fit)
        yield f"  layouts by fit into {plan.task.usable_gib:.4g} GiB: {words}"
    for each in rows:
        if each.training_rate is not None:
            yield f"  the {each.what} trains {describe_training_rate(each.training_rate)}"
    levels = ", ".join(f"the {each.what} {each.verified.level}" for each in rows)
    yield f"  verified by tests: {levels} (--json has the values)"


def _time_rows(
    plan: Plan, rows: Sequence[ExplainedLayout], saved: Mapping[str, float] | None
) -> Iterator[Sequence[str]]:
    seconds_of = {name: [float(of[each.place - 1]) for each in rows] for name, of in plan.time_s.items()}
    names = [name for name, seconds in seconds_of.items() if any(seconds)]
    known = plan.speed_is_known
    has_mfu = rows[0].mfu is not None
    yield ["seconds per step" if known else "share of a step", *names, "all", *(("MFU", "HFU") if has_mfu else ())]
    for number, each in enumerate(rows):
        whole = float(plan.estimates.step_time_s[each.place - 1])
        unit = 1.0 if known else whole
        parts = [f"{seconds_of[name][number] / unit:.4g}" for name in names]
        shares = ["-" if share is None else f"{share:.1%}" for share in (each.mfu, each.hfu)] if has_mfu else []
        yield [f"the {each.what}", *parts, f"{whole / unit:.4g}", *shares]
    if saved is not None:
        cells = [f"{saved[name]:+.4g}" for name in names]
        yield ["time saved per step", *cells, f"{sum(saved.values()):+.4g}", *(("", "") if has_mfu else ())]


def _memory_rows(rows: Sequence[ExplainedLayout]) -> Iterator[Sequence[str]]:
    names = [name for name in rows[0].parts_gib if any(each.parts_gib[name] for each in rows)]
    yield ["GiB on the fullest stage", *names, "peak", "stage", "fits"]
    for each in rows:
        parts = [f"{each.parts_gib[name]:.4g}" for name in names]
        yield [f"the {each.what}", *parts, f"{each.peak_memory_gib:.4g}", str(each.fullest_stage), each.fits or "-"]


def _rejected_lines(space: SearchSpace, has_examples: bool, are_listed: bool) -> Iterator[str]:
    """Layouts that rules reject: their numbers, with an example of each rule, or one by one."""
    if not space.rejected_by_rule:
        return
    total = sum(space.rejected_by_rule.values())
    if not (has_examples or are_listed):
        counts = ", ".join(f"{count} by {rule}" for rule, count in space.rejected_by_rule.items())
        yield f"{total} are rejected: {counts} (--rejected lists them with their numbers)"
        return
    yield f"{total} are rejected:"
    examples = space.examples()
    for rule, count in space.rejected_by_rule.items():
        yield f"  {count:6d}  {rule}, for example {examples[rule].problem.message}"
    if are_listed:
        listed = list(islice(space.rejected(), MAX_REJECTED_LISTED))
        yield from (f"  {r.problem.code}: {r.text}" for r in listed)
        if left_out := total - len(listed):
            yield f"  and {left_out} more"


def _format_hours(expected: ExpectedHours, spec: SearchSpec) -> str:
    words = f"assuming that a guided search takes {plural(expected.guided_trials, 'trial')}"
    if spec.search.finalists and spec.search.finals is Finals.UNTIL_DECIDED:
        words += f" and its finals all {plural(spec.search.finalist_repeats, 'round')} (upper limit)"
    if expected.guided is None:
        return f"expected: unknown node-hours, {words}"
    return (
        f"expected: {expected.guided:.2f} node-hours with the planner, {words};"
        f" {expected.every_layout:.2f} to try every layout"
    )
