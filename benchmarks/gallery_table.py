"""Predictions for the gallery's systems before any trial: of their authors' recipes, and of the layout that Parlay
would try next. The numbers of docs/gallery.md.

    python -m benchmarks.gallery_table [--page docs/gallery.md] [--json]

One line per recipe, then its system's choice. `--page` writes them into that page, between marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gallery import fill
from benchmarks.output import Line, arguments_of, show
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.explain import ExplainedLayout, explain_layouts
from orchestrator.planning.plan import Plan, plan_of
from search_spaces.schema import presets
from trials.outcome_types import TimeParts

STEP_TIME, TOKENS, SHARE = "step_time_s", "tokens_per_sec", "share_of_peak"
"""Published quantities of a recipe: seconds per step, tokens per second, or the share of peak, for which it may be open
whether recomputation counts."""
CHOICE = "Parlay's choice"
_PARTS = tuple(TimeParts.__annotations__)


@dataclass(frozen=True)
class Recipe:
    """Published recipe: `settings` make it the baseline of its system's search."""

    words: str
    quantity: str | None = None
    published: float | None = None
    settings: tuple[str, ...] = ()


def _zero(stage: int, offload: str = "none") -> Recipe:
    engine = "deepspeed" if stage else "torch"  # docs/trainer.md says why
    given = {"zero_stage": stage, "offload": offload, "engine": engine}
    words = f"ZeRO {stage}" + (", optimizer on the host" if offload == "optimizer" else "")
    return Recipe(words, settings=tuple(f"baseline.{name}={value}" for name, value in given.items()))


SYSTEMS: Mapping[str, tuple[Recipe, ...]] = {
    "asc22-yuan": (Recipe("the entry", TOKENS, 4100),),
    "mt-nlg-530b": (
        Recipe("280 nodes", STEP_TIME, 60.1),
        Recipe("350 nodes", STEP_TIME, 50.2, ("space.num_nodes=350",)),
        Recipe("420 nodes", STEP_TIME, 44.4, ("space.num_nodes=420",)),
    ),
    "yuan-245b": (Recipe("the paper's", SHARE, 0.45),),
    "frontier-22b": (Recipe("their script's", SHARE, 0.3838),),
    "frontier-175b": (Recipe("their script's", SHARE, 0.3614),),
    "frontier-1t": (Recipe("their script's", SHARE, 0.3196),),
    # Tokens/s of NVIDIA-NeMo/Megatron-Bridge's performance summary: 26.04, and twice 26.06.
    "llama3-70b-h100": (Recipe("the table's", TOKENS, 64 * 1633),),
    "qwen3-30b-a3b-gb200": (Recipe("the table's", TOKENS, 8 * 40706),),
    "gpt-oss-120b-gb200": (Recipe("the table's", TOKENS, 64 * 28947),),
    # NVIDIA-NeMo/Automodel, docs/performance-summary.mdx, 36044ad.
    "llama3-8b-lora-h100": (Recipe("the page's", TOKENS, 12473),),
    "zero-mini": (_zero(0), _zero(1), _zero(2), _zero(3), _zero(3, "optimizer")),
}
"""Published recipes of the gallery's systems; what they do not state is taken from their search files."""


def main() -> None:
    arguments = arguments_of(__doc__, page="")
    lines = show(gallery_lines(), arguments.json)
    if arguments.page:
        fill(Path(arguments.page), page_parts(lines))


def gallery_lines() -> Iterator[Line]:
    """Lines of every recipe, those of each system followed by the layout that its search would try first."""
    for system, recipes in SYSTEMS.items():
        path = Path(presets.__file__).parents[1] / presets.SEARCHES / f"{system}.yaml"
        plans = []
        for recipe in recipes:
            spec = load_search_file(path, recipe.settings)
            plans.append(plan_of(spec, candidates_of(spec)))
            yield _line(system, recipe, plans[-1], explain_layouts(plans[-1], spec.baseline)[-1])
        yield _line(system, Recipe(CHOICE), plans[0], ExplainedLayout.of(plans[0], "first", 0))


def page_parts(lines: Sequence[Line]) -> dict[str, str]:
    """Texts between the page's marks: cells `predicted SYSTEM` and `choice SYSTEM`, a table `plan SYSTEM`."""
    parts = {}
    for system in dict.fromkeys(line["system"] for line in lines):
        rows = [line for line in lines if line["system"] == system]
        parts[f"predicted {system}"] = _predicted_cell(rows[0])
        parts[f"choice {system}"] = _choice_cell(rows[-1], rows[0])
        parts[f"plan {system}"] = "\n" + _table(rows) + "\n"
    return parts


def _line(system: str, recipe: Recipe, plan: Plan, layout: ExplainedLayout) -> Line:
    """Line of a layout; `off` has relative errors of what was published, by the name of the predicted quantity."""
    row = layout.plain()
    names = ("layout_key", "place", "step_time_s", TOKENS, "mfu", "hfu", "peak_memory_gib", "fits", "time_s")
    about = {"system": system, "recipe": recipe.words, "quantity": recipe.quantity, "published": recipe.published}
    compared = ("mfu", "hfu") if recipe.quantity == SHARE else (str(recipe.quantity),)
    off = {name: row[name] / recipe.published - 1 for name in compared} if recipe.published else {}
    return about | {"num_layouts": len(plan.layouts)} | {name: row[name] for name in names} | {"off": off}


def _published(line: Line) -> str:
    if line["published"] is None:
        return ""
    words = {
        STEP_TIME: f"{line['published']:g} s a step",
        TOKENS: f"{line['published']:,.0f} tokens/s",
        SHARE: f"{line['published']:.2%} of the peak",
    }
    return words[line["quantity"]]


def _numbers(line: Line) -> str:
    speed = f"{line[TOKENS]:,.0f} tokens/s, " if line["quantity"] == TOKENS else ""
    return f"{speed}{line['step_time_s']:.3g} s a step, {_shares(line)} of the peak, {line['peak_memory_gib']:.3g} GiB"


def _shares(line: Line) -> str:
    mfu, hfu = f"{line['mfu']:.1%}", f"{line['hfu']:.1%}"
    return mfu if mfu == hfu else f"{mfu} ({hfu} with what is computed again)"


def _predicted_cell(line: Line) -> str:
    names = {"mfu": "", "hfu": " (with what is computed again)"}
    errors = ", ".join(f"{value:+.0%}{names.get(name, '')}" for name, value in line["off"].items())
    return _numbers(line) + (f"; off {errors}" if errors else "")


def _choice_cell(line: Line, baseline: Line) -> str:
    faster = baseline["step_time_s"] / line["step_time_s"]
    return f"`{line['layout_key']}`: {_numbers(line)}; {faster:.2f} x as fast"


def _table(rows: Sequence[Line]) -> str:
    """Table with a row per recipe and the seconds of a step's parts, without empty columns."""
    parts = [name for name in _PARTS if any(row["time_s"][name] >= 0.005 * row["step_time_s"] for row in rows)]
    named = [name.replace("_", " ") for name in parts]
    heads = ["", "place", "published", "s a step", *named, "MFU", "HFU", "GiB", "fits"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        seconds = [f"{row['time_s'][name]:.3g}" for name in parts]
        shares = [f"{row['mfu']:.1%}", f"{row['hfu']:.1%}"]
        cells = [f"{row['recipe']}, `{row['layout_key']}`", f"{row['place']} of {row['num_layouts']}", _published(row)]
        cells += [f"{row['step_time_s']:.3g}", *seconds, *shares]
        cells += [f"{row['peak_memory_gib']:.3g}", str(row["fits"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
