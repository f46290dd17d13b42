"""`parlay best` with several objectives or numbers of nodes: every answer, which of them is the best, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from orchestrator.cli.search_summary import describe_upper_limit
from orchestrator.planning.candidates import candidates_of
from search_spaces.layouts.layout import Layout
from tests.orchestrator.past_searches import measured, past, spec_in, write_ledger

ON_ONE = Layout(tensor_parallel=2, micro_batch_size=4, grad_accum_steps=2)
ON_TWO = Layout(num_nodes=2, tensor_parallel=2, data_parallel=2, micro_batch_size=4, grad_accum_steps=1)
TRADE = "t0001 on 1 node has 62 % of its tokens/s at 81 % of its node-hours a token"


def asked(folder: Path, *overrides: str) -> list[str]:
    """A ledger with a search over one and two nodes, as options of the command line."""
    spec = spec_in(folder, "cluster.num_nodes=2", "space.num_nodes=[1, 2]", *overrides)
    trials = [
        measured(name, layout, tokens_per_sec=speed, tokens_per_sec_low=0.99 * speed, tokens_per_sec_high=1.01 * speed)
        for name, layout, speed in (("t0001", ON_ONE, 186.0), ("t0002", ON_TWO, 300.0))
    ]
    search = past(spec, *trials)
    search = replace(search, spec=search.spec | {"folder": str(folder / search.search_id)})
    return ["past-aaaaaa", "--ledger", write_ledger(f"sqlite:///{folder / 'ledger.db'}", search)]


@pytest.mark.slow
def test_several_numbers_of_nodes_are_all_answered_and_the_best_says_what_fewer_give(tmp_path, capfd):
    search = asked(tmp_path)
    assert run(["best", *search, "--json"]) == 0
    best = json.loads(capfd.readouterr().out)
    assert [(point["trial"], point["num_nodes"]) for point in best["pareto"]] == [("t0002", 2), ("t0001", 1)]
    assert best["pareto"][1]["values"] == {"tokens_per_sec": 186.0}
    assert best["rationale"] == f"t0002 is the fastest of the layouts measured; {TRADE}"
    for verb in ("best", "status"):
        assert run([verb, *search]) == 0
        assert f"\n{TRADE}\n" in capfd.readouterr().out


def test_of_several_objectives_each_answer_has_every_value(tmp_path, capfd):
    asks = "objective=[node_hours_per_billion_tokens, tokens_per_sec]"
    assert run(["best", *asked(tmp_path, asks), "--json"]) == 0
    best = json.loads(capfd.readouterr().out)
    assert (best["trial"], best["objective"]) == ("t0001", "node_hours_per_billion_tokens")
    first, second = best["pareto"]
    assert (
        first["values"]["node_hours_per_billion_tokens"]
        == best["value"]
        < second["values"]["node_hours_per_billion_tokens"]
    )
    assert (first["values"]["tokens_per_sec"], second["values"]["tokens_per_sec"]) == (186.0, 300.0)
    assert best["rationale"].startswith(
        "t0001 is the best in node_hours_per_billion_tokens of the layouts measured; t0002 on 2 nodes"
    )


@pytest.mark.parametrize(("nodes", "repeats"), [("2", 6), ("[1, 2]", 8)])
def test_what_a_search_may_take_counts_a_finalist_more_for_each_further_number_of_nodes(tmp_path, nodes, repeats):
    spec = spec_in(tmp_path, "cluster.num_nodes=2", f"space.num_nodes={nodes}", "search.finalists=3")
    assert f" and {repeats} repeats: upper limit " in describe_upper_limit(spec, candidates_of(spec))
