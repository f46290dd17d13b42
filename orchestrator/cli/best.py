"""`parlay best`: the best layout of a search, and its recipe."""

from __future__ import annotations

import time

from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import Exit, print_result
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import Problem


def best(search: SearchId = None, ledger: LedgerUrl = None) -> None:
    from dashboards import trial_text
    from dashboards.cost_text import describe_search_cost
    from dashboards.report.sentences import describe_comparison
    from dashboards.search_view import SearchView
    from dashboards.terminal.headline import best_layout_line, describe_incomplete
    from orchestrator.cli.search_summary import launch_lines
    from orchestrator.records.lookup import find_search, missing_recipe_reason
    from orchestrator.records.summary import best_of, result_line
    from trials.analysis.pareto import trade_offs

    found = find_search(search, ledger)
    spec = found.spec
    view = SearchView.of(found.record, time.time())
    ranking, verdict = view.ranking, view.verdict
    data = best_of(found.record, spec, found.folder)
    if data is None:
        message = f"search {found.record.search_id}: {result_line(found.record, spec)}"
        fix = f"parlay status {found.folder.cli_name} shows what became of it"
        raise Exit(ExitCode.NO_MEASUREMENT, Problem("no_measurement", message, fix=fix))
    table = found.record.replayed_table
    lines = [
        None if table is None else trial_text.describe_replayed_table(table),
        None if verdict.is_complete else describe_incomplete(verdict),
        best_layout_line(verdict),
        describe_comparison(view),
        *trade_offs(ranking),
        trial_text.describe_step_time(data.time_s),
        trial_text.describe_node_sets(data.on_disjoint_nodes),
        trial_text.describe_fullest_rank(data.fullest_rank),
        trial_text.describe_slowest_rank(data.slowest_rank),
        trial_text.describe_training_rate(data.training_rate),
        describe_search_cost(data.cost),
        None if ranking.best is None else trial_text.describe_energy(ranking.best.measured),
        *map(trial_text.describe_flag, data.flags),
        f"recipe:  {data.recipe or missing_recipe_reason(found)}",
        *launch_lines(found.folder),
    ]
    print_result(data, "\n".join(filter(None, lines)))
