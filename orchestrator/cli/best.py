"""`parlay best`: the best layout of a search, and its recipe."""

from __future__ import annotations

from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import exit_with_error, print_result
from orchestrator.common.exit_codes import ExitCode
from search_spaces.errors import Problem


def best(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Print the best layout of a search, and the path of its recipe."""
    from dashboards.cost_text import describe_search_cost
    from dashboards.terminal.headline import best_layout_line, describe_incomplete
    from dashboards.trial_text import (
        describe_energy,
        describe_flag,
        describe_fullest_rank,
        describe_node_sets,
        describe_replayed_table,
        describe_slowest_rank,
        describe_step_time,
        describe_training_rate,
    )
    from orchestrator.cli.search_summary import launch_lines
    from orchestrator.records.lookup import find_search, missing_recipe_reason
    from orchestrator.records.summary import best_of, result_line
    from trials.analysis.pareto import trade_offs
    from trials.analysis.verdict import verdict_of

    found = find_search(search, ledger)
    spec = found.spec
    ranking = spec.ranking_of(found.record.trials)
    data = best_of(found.record, spec, found.folder)
    if data is None:
        why, name = result_line(found.record, spec), found.record.search_id
        fix = f"parlay status {found.folder.cli_name} shows what became of it"
        problem = Problem("no_measurement", f"search {name}: {why}", fix=fix)
        exit_with_error(ExitCode.NO_MEASUREMENT, problem, as_json)
    verdict, table = verdict_of(found.record, ranking, spec.baseline_key), found.record.replayed_table
    lines = [None if table is None else describe_replayed_table(table)]
    lines += [None if verdict.is_complete else describe_incomplete(verdict), best_layout_line(verdict)]
    lines += [*trade_offs(ranking), describe_step_time(data.time_s)]
    lines.append(describe_node_sets(data.on_disjoint_nodes))
    lines += [describe_fullest_rank(data.fullest_rank), describe_slowest_rank(data.slowest_rank)]
    lines.append(describe_training_rate(data.training_rate))
    lines.append(describe_search_cost(data.cost))
    lines.append(None if ranking.best is None else describe_energy(ranking.best.measured))
    lines += map(describe_flag, data.flags)
    lines.append(f"recipe:  {data.recipe or missing_recipe_reason(found)}")
    lines += launch_lines(found.folder)
    print_result(data, as_json, "\n".join(filter(None, lines)))
