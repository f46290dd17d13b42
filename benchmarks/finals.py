"""Simulated finals: errors and repeats of the rule `until_decided`, against a fixed number of rounds.

    python -m benchmarks.finals [--finals 1000] [--rounds 2] [--json]

Layouts have true speeds; a run's speed varies between runs and is measured to its steps. As in a search, the finalists
are those whose first run was fastest, so that their first runs are lucky. The winner is the fastest by the verdict.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from trials.analysis.finals import TIE_MARGIN, Finalist, Finals, standing_after
from trials.measurement.run_variance import RunMeasurement

SLOWER: Mapping[str, float] = {"equal": 0.0, "close": 0.03, "apart": 0.10}
"""Share by which each of the layouts is slower than the one before, by the name of the case."""
BASELINES: Mapping[str, float] = {"equal": 0.0, "close": 0.15, "apart": 0.40}
"""Share by which the baseline is slower than the fastest."""
NOISE: Mapping[str, float] = {"quiet": 0.01, "as assumed": 0.03, "busy": 0.07}
"""Standard deviation between runs: an idle machine, the prior of docs/measuring.md, and the end of `make demo` in the
README, whose three runs of a layout give intervals of 7 to 11 %."""
STEPS_NOISE = 0.01
"""Standard error of a run's own median, over its steps."""
ROUND_NOISE = 0.02
"""Standard deviation of what all runs of one round have in common."""
NUM_LAYOUTS, NUM_FINALISTS = 8, 3
BASELINE = "baseline"


@dataclass(frozen=True)
class Played:
    """Finals that were played.

    `rule_is_false`: the rule called a layout clearly faster than one that it is no faster than; `verdict_is_false`: the
    interval of the verdict's winner at the end does not overlap that of such a one.
    `loss`: share by which the winner is truly slower than the fastest of the finalists and the baseline.
    """

    repeats: int
    rounds: int
    rule_is_false: bool
    verdict_is_false: bool
    has_clear_winner: bool
    loss: float


def main() -> None:
    arguments = _arguments()
    lines = []
    for line in lines_of(arguments.finals, arguments.rounds, arguments.seed):
        lines.append(line)
        print(json.dumps(line) if arguments.json else _readable(line), flush=True)
    summary = summary_of(lines)
    print(json.dumps(summary) if arguments.json else _readable(summary))


def lines_of(count: int, rounds: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Line for each case of speeds and noise: shares of the finals with an error, and mean repeats, by both rules."""
    for speeds in SLOWER:
        for noise in NOISE:
            by_rule = {
                rule.value: _summary([play(speeds, NOISE[noise], rounds, rule, seed + n) for n in range(count)])
                for rule in Finals
            }
            yield {"speeds": speeds, "noise": noise, "rounds": rounds, **by_rule}


def summary_of(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean repeats over the cases, by rule."""
    return {"summary": True} | {rule.value: fmean(line[rule]["repeats"] for line in lines) for rule in Finals}


def play(speeds: str, noise: float, rounds: int, rule: Finals, seed: int) -> Played:
    """Play the finals of one search; the search and its runs are the same by either rule."""
    truth = _true_speeds(speeds)
    first = {name: _run(truth[name], noise, seed, name, 0) for name in truth}
    ranked = sorted((name for name in truth if name != BASELINE), key=lambda name: -first[name].value)
    runs = {name: [first[name]] for name in (*ranked[:NUM_FINALISTS], BASELINE)}
    active, claims, number = list(runs), set[tuple[str, str]](), 0
    while active:
        number += 1
        for name in active:
            runs[name].append(_run(truth[name], noise, seed, name, number))
        if rule is Finals.UNTIL_DECIDED:
            standing = standing_after([_finalist(name, runs[name]) for name in active], number, rounds, len(runs))
            claims |= standing.clear
            active = [name for name in active if name in standing.next_round]
        elif number == rounds:
            active = []
    intervals = {name: _finalist(name, found).interval for name, found in runs.items()}
    winner = max(intervals, key=lambda name: intervals[name][0])
    verdicts = {(winner, name) for name in runs if intervals[name][1] < intervals[winner][0]}
    return Played(
        repeats=sum(map(len, runs.values())) - len(runs),
        rounds=number,
        rule_is_false=any(truth[faster] <= truth[slower] for faster, slower in claims),
        verdict_is_false=any(truth[faster] <= truth[slower] for faster, slower in verdicts),
        has_clear_winner=all((winner, name) in verdicts for name in runs if name != winner),
        loss=1 - math.exp(truth[winner] - max(truth[name] for name in runs)),
    )


def _summary(found: Sequence[Played]) -> dict[str, float]:
    """Shares of the finals, and means."""
    return {
        "false_by_rule": fmean(one.rule_is_false for one in found),
        "false_by_verdict": fmean(one.verdict_is_false for one in found),
        "winner_off": fmean(one.loss > TIE_MARGIN for one in found),
        "mean_loss": fmean(one.loss for one in found),
        "clear_winner": fmean(one.has_clear_winner for one in found),
        "repeats": fmean(one.repeats for one in found),
    }


def _true_speeds(speeds: str) -> dict[str, float]:
    """Logarithm of each layout's true speed, by name."""
    step = math.log1p(-SLOWER[speeds])
    return {f"t{n}": n * step for n in range(NUM_LAYOUTS)} | {BASELINE: math.log1p(-BASELINES[speeds])}


def _run(log_speed: float, noise: float, seed: int, name: str, number: int) -> RunMeasurement:
    """A run of this layout in this round, 0 in the search; the same whichever rule asks for it."""
    common = random.Random(f"{seed} {number}").gauss(0, ROUND_NOISE) if number else 0.0
    own = random.Random(f"{seed} {number} {name}")
    value = math.exp(log_speed + common + own.gauss(0, noise) + own.gauss(0, STEPS_NOISE))
    factor = math.exp(1.96 * STEPS_NOISE)
    return RunMeasurement(value, value / factor, value * factor)


def _finalist(name: str, runs: Sequence[RunMeasurement]) -> Finalist:
    return Finalist(name, tuple(runs), tuple(runs[1:]), is_baseline=name == BASELINE)


def _readable(line: Mapping[str, Any]) -> str:
    if "summary" in line:
        return "= mean repeats: " + ", ".join(f"{rule} {line[rule]:.1f}" for rule in Finals)
    rules = [f"{rule}: {_percentages(line[rule])}" for rule in Finals]
    return f"{line['speeds']:>6}, {line['noise']:<11} " + "; ".join(rules)


def _percentages(found: Mapping[str, float]) -> str:
    false = f"false {found['false_by_rule']:.1%}, by the verdict {found['false_by_verdict']:.1%}"
    return (
        f"{false}, winner off {found['winner_off']:.1%}, loss {found['mean_loss']:.2%}, "
        f"clear {found['clear_winner']:.0%}, {found['repeats']:.1f} repeats"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--finals", type=int, default=1000, help="finals of each case, by each rule")
    parser.add_argument("--rounds", type=int, default=2, help="search.finalist_repeats")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args()


if __name__ == "__main__":
    main()
