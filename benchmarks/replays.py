"""Benchmark of `parlay replay`: verdicts on one recipe, alternating with the same recipe made slower.

    python -m benchmarks.replays RECIPE [--replays 20] [--slower 0.15] [--repeats 5] [--launcher local]

Each is a separate `parlay replay`, all at once: while one waits for its next session others measure, one at a time. The
slower one is a copy whose program waits in each step, before its clock is read, for a share of the step's time, as a
slower machine or library would. Its checksum no longer matches, so it is replayed with --force.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.output import Line, arguments_of, show

LOOP = Path("code/trials/train/measurement/loop.py")
"""File in a recipe's folder that times a step."""
_VALUES = ("verdict", "detail", "ratio", "ratio_low", "ratio_high", "fast_ratio", "fast_ratio_low", "fast_ratio_high")
_END_OF_STEP = "        step_time_s = time.perf_counter() - started\n"


def main() -> None:
    arguments = arguments_of(__doc__, "recipe", replays=20, slower=0.15, repeats=5, launcher="")
    with tempfile.TemporaryDirectory(prefix="parlay-replays-") as folder:
        lines = show(_lines(arguments, Path(folder)), arguments.json)
    show(summaries(lines), arguments.json)


def slowed_copy(recipe: Path, copy: Path, share: float) -> Path:
    """Copy of the recipe whose steps take `share` longer. ValueError for an unknown program."""
    shutil.copytree(recipe, copy)
    loop = copy / LOOP
    before, *after = loop.read_text().split(_END_OF_STEP)
    if len(after) != 1:
        raise ValueError(f"{recipe / LOOP} does not end a step as this benchmark knows it")
    wait = f"        time.sleep({share!r} * (time.perf_counter() - started))\n"
    loop.write_text(before + wait + _END_OF_STEP + after[0])
    return copy


def summaries(lines: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """Line for each slow-down: counts of verdicts, and the ratios of complete replays."""
    for slower in dict.fromkeys(line["slower"] for line in lines):
        found = [line for line in lines if line["slower"] == slower]
        ratios = sorted(line["ratio"] for line in found if line["ratio"] is not None and line["detail"] is None)
        yield {
            "summary": True,
            "slower": slower,
            "replays": len(found),
            "verdicts": dict(Counter(line["verdict"] for line in found).most_common()),
            "ratio_median": median(ratios) if ratios else None,
            "ratio_min": ratios[0] if ratios else None,
            "ratio_max": ratios[-1] if ratios else None,
        }


def _lines(arguments: argparse.Namespace, folder: Path) -> Iterator[Line]:
    slower = slowed_copy(arguments.recipe, folder / "slower", arguments.slower)
    with ThreadPoolExecutor(2 * arguments.replays) as pool:
        replays = {
            pool.submit(_replayed, recipe, arguments, folder): (number, share)
            for number in range(1, arguments.replays + 1)
            for share, recipe in ((0.0, arguments.recipe), (arguments.slower, slower))
        }
        for replay in as_completed(replays):
            (number, share), result = replays[replay], replay.result()
            by_session = {
                f"{name}_by_session": [o[name] for o in result["sessions"]] for name in ("ratio", "fast_ratio")
            }
            yield {"replay": number, "slower": share, **{name: result[name] for name in _VALUES}, **by_session}


def _replayed(recipe: Path, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    command = [str(Path(sys.executable).with_name("parlay")), "replay", str(recipe), "--json", "--force"]
    command += ["--repeats", str(arguments.repeats), "--work-dir", str(folder)]
    command += ["--launcher", arguments.launcher] if arguments.launcher else []
    done = subprocess.run(command, env=os.environ | {"PARLAY_HOME": str(folder / "home")}, stdout=subprocess.PIPE)
    answer: dict[str, Any] = json.loads(done.stdout)
    if "verdict" not in answer:
        raise SystemExit(f"{' '.join(command)} left with {done.returncode}: {answer}")
    return answer


if __name__ == "__main__":
    main()
