"""`parlay plan --nodes N --from SEARCH`: step time on more nodes, extrapolated from trials on a few."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.cli.output import align, print_result, print_text, prints_json
from orchestrator.cli.plan_table import split_common_parts
from orchestrator.planning.forecast import Forecast, ForecastAnswer, ForecastInput, Scaling
from orchestrator.planning.forecast import forecast as forecast_of
from orchestrator.planning.forecast_inputs import input_from_search, input_from_table
from orchestrator.planning.prior_trials import load_prior_trials
from orchestrator.records.lookup import find_search
from search_spaces.errors import InputError, choice_fix
from search_spaces.hardware.cluster import Cluster
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.validation import restore
from search_spaces.tables.measured_table import read_table
from trials.files.text import plural

_CONTENDERS_LISTED = 3


def print_forecast(
    given: str | None,
    nodes: str | None,
    scaling: str | None,
    problems: list[str],
    cluster: str | None,
    top: int | None,
    ledger: str | None,
) -> None:
    """Print the forecast from a search, the newest where none is `given`, or from a measured table."""
    if scaling is not None and scaling not in [*Scaling]:
        rule, fix = f"one of {', '.join(Scaling)}", choice_fix(scaling, [*Scaling])
        raise InputError.of("choice", f"is {scaling!r}", key="--scaling", value=scaling, rule=rule, fix=fix)
    counts = None if nodes is None else _parse_nodes(nodes)
    inputs, origin = _load_inputs(given, problems, cluster, ledger)
    report = forecast_of(inputs, [*Scaling] if scaling is None else [Scaling(scaling)], counts, **origin)
    if prints_json.get():
        cut = [one.model_copy(update={"contenders": one.contenders[:top]}) for one in report.forecasts]
        print_result(report.model_copy(update={"forecasts": cut}))
    else:
        print_text("\n".join(_lines(report, top or _CONTENDERS_LISTED)))


def _load_inputs(
    given: str | None, problems: list[str], cluster: str | None, ledger: str | None
) -> tuple[ForecastInput, dict[str, str]]:
    """Return the trials, and their search's id or their table by the answer's keys."""
    described = None if cluster is None else _load_cluster(cluster)
    if given is not None and given.endswith(".csv"):
        rows = read_table(Path(given), "--from")
        return input_from_table(rows, problems, described), {"table": given}
    if problems:
        fix = "leave it out, or name a measured table: TABLE.csv"
        message = "is for a table, and --from names a search"
        raise InputError.of("contradiction", message, key="--problem", value=problems, fix=fix)
    found = find_search(given, ledger)
    inputs = input_from_search(found.record, found.spec, load_prior_trials(found.folder), described)
    return inputs, {"search_id": found.record.search_id}


def _load_cluster(cluster: str) -> Cluster:
    """Return the ready-made cluster of this name, or the one in this file."""
    try:
        return restore(ClusterSection, cluster).cluster()
    except InputError as error:
        raise error.at(key="--cluster") from None


def _parse_nodes(text: str) -> list[int]:
    """Parse numbers of nodes: sorted, without duplicates."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,6}", word) and 1 <= int(word) <= _MAX_NODES for word in words):
        rule = f"whole numbers from 1 to {_MAX_NODES} with commas between them"
        raise InputError.of("nodes", f"is {text!r}", key="--nodes", value=text, rule=rule, fix="--nodes 2,4,8")
    return sorted({int(word) for word in words})


_MAX_NODES = 100_000


def _lines(report: ForecastAnswer, top: int) -> Iterator[str]:
    base = report.base
    yield (
        f"from {plural(report.trials, 'measured layout')}; the best on {plural(base.num_nodes, 'node')}:"
        f" {base.step_time_s:.4g} s, {base.tokens_per_sec:,.0f} tokens/s, {base.layout_key}"
    )
    names = _distinct_names(report, top)
    if common := names.pop(""):
        yield f"all layouts below have {common}"
    for scaling in dict.fromkeys(forecast.scaling for forecast in report.forecasts):
        rows = [forecast for forecast in report.forecasts if forecast.scaling is scaling]
        yield f"{scaling} scaling, the global batch {_BATCH_CHANGE[scaling.value]}:"
        head, *lines = align(_HEAD, *map(_numbers, rows))
        yield f"  {head}  layout"
        for forecast, line in zip(rows, lines, strict=True):
            yield f"  {line}  {names[forecast.layout_key]}"
            yield from (f"         {remark}" for remark in _remarks(forecast, top, names))
    yield from (f"note: {note}" for note in report.notes)


_HEAD = ("nodes", "batch", "seconds/step", "95 % between", "tokens/s", "per GPU", "efficiency", "fits")
_BATCH_CHANGE = {"weak": "grows with the nodes", "strong": "stays"}


def _distinct_names(report: ForecastAnswer, top: int) -> dict[str, str]:
    """Distinguishing parts of the listed layouts' keys; "" maps to their common part."""
    listed = [forecast.layout for forecast in report.forecasts]
    listed += [contender.layout for forecast in report.forecasts for contender in forecast.contenders[:top]]
    common, names = split_common_parts(listed) if listed else ("", [])
    return {"": common} | {layout.key: name for layout, name in zip(listed, names, strict=True)}


def _numbers(forecast: Forecast) -> tuple[str, ...]:
    return (
        str(forecast.num_nodes),
        str(forecast.global_batch_size),
        f"{forecast.step_time_s:.4g}",
        f"{forecast.step_time_low_s:.4g} and {forecast.step_time_high_s:.4g}",
        f"{forecast.tokens_per_sec:,.0f}",
        f"{forecast.tokens_per_sec_per_gpu:,.0f}",
        f"{forecast.efficiency:.1%}",
        forecast.fits or "-",
    )


def _planned_probability(forecast: Forecast) -> str:
    """Probability of the row's layout, if another one is likelier. Rows come from the corrected models, probabilities
    from draws."""
    own, (likeliest, *_) = forecast.layout, forecast.contenders
    if likeliest.layout == own:
        return ""
    probability = next((contender.probability for contender in forecast.contenders if contender.layout == own), None)
    words = "none of them" if probability is None else f"the best with probability {probability:.0%}"
    return f"; the plan's first, shown above, is {words}"


def _remarks(forecast: Forecast, top: int, names: Mapping[str, str]) -> Iterator[str]:
    """Other candidates for the best layout, and uncertain terms."""
    if len(forecast.contenders) > 1:
        listed = "; ".join(
            f"{names[contender.layout_key]} ({contender.probability:.0%})" for contender in forecast.contenders[:top]
        )
        yield f"the best is one of {len(forecast.contenders)}: {listed}{_planned_probability(forecast)}"
    for unseen in forecast.uncertain_terms:
        where = "over the fabric" if unseen.over_fabric else "inside a node"
        yield f"mostly unknown: no trial measured {unseen.term} {where}"
