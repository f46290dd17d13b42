"""Files with other content than Parlay wrote: each reader, driver and verb ends in a result or in words that name them.

Real files are changed in one place, by a seed: a value of another type, beyond all bounds or nested too deep, an absent
or unknown key, other bytes. A journal's lines and a recipe are sealed again, as their owner could.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.schema.notify import webhook_address
from orchestrator.config.site import SITES, load_profile
from orchestrator.launchers.local.processes import RankProcess
from orchestrator.launchers.local.rank_groups import RANKS_SCHEMA, AcceptedLaunch, read_ranks
from orchestrator.launchers.slurm.handover import ClockReading, HandoverFile, HandoverState
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.recipe.recipe import checksum
from orchestrator.replay.measured_layout import _recorded_outcomes
from orchestrator.search.lease import current_lease
from orchestrator.service.quota import QuotaFile
from orchestrator.service.state_dir import ServiceSearch, ServiceStateDir
from search_spaces.errors import ExternalError
from search_spaces.tables.measured_table import read_table
from tests.kit import OUTCOME, SPEC
from tests.orchestrator.cli.parlay import parlay_here
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, write_simulated_search
from tests.rig import PilotBench, finish
from trials.analysis.early_stopping import read_incumbent
from trials.diagnostics.calibration import Measurements
from trials.diagnostics.node_probe import NodeProbeReport, RankProbe
from trials.diagnostics.selftest import CaseResult, Results
from trials.files.folders import AttemptFolder, SearchFolder, read_json, read_lines, write_json
from trials.ledger.journal import Journal, search_of
from trials.measurement.node_metrics import NodeSample
from trials.measurement.step_log import StepPhase, StepRecord
from trials.pilot.files import StepFileKind
from trials.ranks.program import read_spec
from trials.trial import Outcome, utc_text

pytestmark = [pytest.mark.bad_input(41), pytest.mark.security("contents")]

DEEP = "[" * 100_000
VALUES = (
    *("null", '"x"', '""', "-1", "0", "1.5", "true", "[]", "{}", "[[]]", '{"a": 1}', "[null]", '["x"]', "[1]"),
    *("4611686018427387904", "1" + "0" * 400, "1e308", "-1e99", "1e-320", "NaN", "Infinity", r'"\ud800"', r'"\u0000"'),
    *("[" * 55 + "]" * 55, DEEP + "]" * 100_000, '"9999-12-31T23:59:59.999999Z"', '"../x"'),
)
FILES = ("", "null", "[]", "{}", "1", "{", "\x00", DEEP, '{"a":' * 100_000, "\udcff\udcfe")
"""Whole files; surrogates stand for bytes that are no UTF-8."""
REFUSED = (OSError, ValueError, ExternalError)


def changed(data: Any, draw: random.Random) -> str:
    """The JSON text with a change at one place."""
    data = copy.deepcopy(data)
    above, key = draw.choice(list(_places(data)))
    change = draw.random()
    if change < 0.2:
        del above[key]
    elif change < 0.3 and isinstance(above, dict):
        above["stranger"] = 1
    else:
        above[key] = "HERE"
        return json.dumps(data, separators=(",", ":")).replace('"HERE"', draw.choice(VALUES), 1)
    return json.dumps(data, separators=(",", ":"))


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield data, key
        yield from _places(data[key])


def changed_json(text: str, draw: random.Random) -> str:
    return draw.choice(FILES) if draw.random() < 0.1 else changed(json.loads(text), draw)


def changed_lines(text: str, draw: random.Random) -> str:
    """Lines of JSON with a change in one."""
    lines = text.splitlines()
    place = draw.randrange(len(lines))
    lines[place] = changed_json(lines[place], draw)
    return "\n".join(lines) + "\n"


def changed_journal(text: str, draw: random.Random) -> str:
    """A journal with a change in one line, whose checksum fits again."""
    lines = text.splitlines()
    place = draw.choice((0, draw.randrange(len(lines))))
    event = json.loads(lines[place])
    del event["crc32"]
    lines[place] = sealed(changed(event, draw))
    return "\n".join(lines) + "\n"


def sealed(event: str) -> str:
    """A line of a journal, with its checksum."""
    body = event.removesuffix("}")
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'


def changed_recipe(text: str, draw: random.Random) -> str:
    """A recipe with a change, whose checksum fits again where it can be computed."""
    recipe = changed_json(json.dumps(yaml.safe_load(text)), draw)
    try:
        data = json.loads(recipe)
        return json.dumps(data | {"checksum": checksum(data)})
    except (ValueError, TypeError, AttributeError, RecursionError):
        return recipe


def changed_text(text: str, draw: random.Random) -> str:
    """Text in which one word is another."""
    words = text.split(",")
    words[draw.randrange(len(words))] = draw.choice((*VALUES, *FILES, "\n", '"', "=1+1"))
    return ",".join(words)


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogateescape"))


Change = Callable[[str, random.Random], str]
Reader = Callable[[Path], object]


def files_in(folder: Path) -> dict[str, tuple[str | None, Change, Reader]]:
    """Content, change and reader of each file that a function of ours reads; None: it is there already."""
    lease = {"search_id": "a", "fencing": 2, "host": "h", "pid": 1, "pid_started": 5, "pid_scope": "x"}
    times = {name: utc_text(1e9) for name in ("heartbeat_at", "expires")}
    ranks = AcceptedLaunch("a.t0001.a1", "7", (RankProcess(0, "h", 1, 5, "b", 1e9),))
    handover = {"at": asdict(ClockReading("b", 1.0, 1e9)), "attempts": {"a": asdict(HandoverState(submitted_at=1.0))}}
    probe = NodeProbeReport((RankProbe(0, "n", "h", "3.11", "/p", "2.4", None, ("g",), None, (0, 1), 0.5),))
    best = {"search_id": SPEC.search_id, "trial": "t0001", "fingerprint": {}, "incumbents": [{"num_nodes": 1}]}
    quota = {"schema": "parlay.quota/1", "searches": {"a": {"active": 1, "target": 2}}}
    step = StepRecord(1, StepPhase.MEASURED, utc_text(1e9), 0.5, 0.4, 2.0, 1.0, 8).to_json()
    sample = {"time": utc_text(1e9), "values": {"cpu_utilization_percentage": 5.0}}
    objects: dict[str, tuple[dict[str, Any], Reader]] = {
        "lease.json": ({"schema": "parlay.lease/1", **lease, **times}, _lease),
        "ranks.json": ({"schema": RANKS_SCHEMA, **asdict(ranks)}, lambda path: read_ranks(AttemptFolder(path.parent))),
        "launcher.json": ({"schema": "parlay.launcher/1", **handover}, _handover),
        "spec.json": (SPEC.to_json(), read_spec),
        "outcome.json": (OUTCOME.to_json(), lambda path: Outcome.from_json(read_json(path) or {})),
        "evidence.json": ({"runs": [{"trial": "t0001", "outcome": OUTCOME.to_json()}]}, _recorded_outcomes),
        "best.json": ({"schema": "parlay.incumbents/1", **best}, lambda path: read_incumbent(SPEC, path, {})),
        "quota.json": (quota, lambda path: QuotaFile(path, 4).grant("b", 0, 2)),
        "node_probe.json": (probe.to_json(), lambda path: NodeProbeReport.read(path.parent)),
        "measurements.json": (Measurements().to_json(), lambda path: Measurements.read(path.parent)),
    }
    Results((CaseResult("a", 1, True, 0.1, 0.2, 3.0),)).write(folder)
    service = ServiceStateDir(folder)
    service.write_searches({"a": ServiceSearch("a", folder, "sqlite://")})
    write(folder / "hook", "https://example.org/hook\n")
    (folder / "hook").chmod(0o600)
    shutil.copy(SITES / "frontier.toml", folder)
    return {
        **{name: (json.dumps(content), changed_json, reader) for name, (content, reader) in objects.items()},
        "metrics.jsonl": (json.dumps(step) + "\n", changed_lines, partial(read_lines, StepRecord)),
        "system.jsonl": (json.dumps(sample) + "\n", changed_lines, partial(read_lines, NodeSample)),
        "results.json": (None, changed_json, lambda path: Results.read(path.parent)),
        service.searches.name: (None, changed_json, lambda path: service.read_searches()),
        "hook": (None, changed_text, webhook_address),
        "frontier.toml": (None, changed_text, lambda path: load_profile(str(path))),
    }


def _lease(path: Path) -> object:
    found = current_lease(SearchFolder(path.parent))
    return None if found is None else found.is_held(1e9)


def _handover(path: Path) -> object:
    return HandoverFile(path, lambda: 0.0, lambda: 0.0).load()


def test_a_file_is_read_or_refused(tmp_path: Path):
    for name, (content, change, reader) in files_in(tmp_path).items():
        read_all(tmp_path / name, content or (tmp_path / name).read_text(), change, reader)


def read_all(path: Path, text: str, change: Change, reader: Reader, times: int = 80) -> None:
    """Read the file as it is, and with `times` changes."""
    write(path, text)
    reader(path)
    for seed in range(times):
        content = change(text, random.Random(seed))
        write(path, content)
        try:
            reader(path)
        except REFUSED:
            pass
        except Exception as error:
            pytest.fail(f"{path.name}, seed {seed}: {error!r} for {content[:2000]}")


STEP_FILES = [f"steps/t0001.a1.{kind}" for kind in (StepFileKind.CLAIMED, StepFileKind.STARTED, StepFileKind.ENDED)]


@pytest.mark.parametrize("name", ["pilot.json", "job.json", "job_end.json", "plain_starts.json", *STEP_FILES])
def test_a_damaged_file_of_a_pilot_ends_no_driver_that_takes_it_over(tmp_path: Path, name: str):
    for seed in range(25):
        rig = PilotBench(tmp_path / str(seed))
        request = rig.launch()
        folder = rig.serve()
        finish(folder, "t0001.a1")
        write_json(folder.plain_starts, {"schema": "parlay.pilot/1", "reason": "why"})
        if name == "job_end.json":
            status = {"liveness": "ended", "started": True, "nodes": ["n1"], "started_at": 1e9, "ended_at": 1e9 + 5}
            write_json(folder.job_end, {"schema": "parlay.pilot/1", **status})
        write(folder.path / name, changed_json((folder.path / name).read_text(), random.Random(seed)))
        rig.launcher = rig.new_launcher()
        rig.launcher.adopt({request.key: request})
        rig.look()
        rig.launcher.cancel_leftovers()
        rig.launcher.ended_pilots()


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a simulated search that has ended, with a copy beside it."""
    place = tmp_path_factory.mktemp("hostile")
    home = place / "home"
    home.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_HOME", str(home))
        answer = parlay_here("run", write_simulated_search(place, OK, OK, OUT_OF_MEMORY), cwd=place)
    assert answer.code == 0, answer.err
    [folder] = (place / "runs").glob("table-*")
    shutil.copytree(folder, place / "copy" / folder.name)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change", "verbs"),
    [
        ("journal.jsonl", changed_journal, ("status --json HERE", "best HERE", "report HERE", "compare HERE COPY")),
        ("journal.jsonl", changed_lines, ("ledger rebuild HERE", "watch HERE", "export HERE --out -")),
        ("lease.json", changed_json, ("status HERE",)),
        ("mlflow.json", changed_json, ("status --json HERE",)),
        ("recipe/recipe.yaml", changed_recipe, ("compare HERE/recipe COPY/recipe", "best HERE")),
        ("recipe/spec.json", changed_json, ("replay HERE/recipe --force",)),
        ("../../table.csv", changed_text, ("plan ../../search.yaml",)),
    ],
)
def test_no_content_of_a_file_ends_a_verb_in_a_traceback(searched: Path, name: str, change: Change, verbs: tuple[str]):
    path, places = searched / name, {"HERE": str(searched), "COPY": str(searched.parents[1] / "copy" / searched.name)}
    if not path.exists():
        write_json(path, {"uri": "http://127.0.0.1:5000", "run_id": "x"})
    before = path.read_text()
    for seed in range(12):
        write(path, change(before, random.Random(seed)))
        for verb in verbs:
            words = [word.replace("HERE", places["HERE"]).replace("COPY", places["COPY"]) for word in verb.split()]
            answer = parlay_here(*words, cwd=searched)
            assert answer.code != ExitCode.INTERNAL_ERROR, f"seed {seed}, {verb}: {answer.err}"
            assert "Traceback" not in answer.err
    write(path, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "place", "value"),
    [
        ("search_created", ("spec", "search", "finalist_repeats"), None),
        ("search_created", ("spec", "constraints"), [None]),
        ("search_created", ("spec", "measure", "finalist_time_s"), {}),
        ("attempt_ended", ("outcome", "fullest_rank"), {"rank": 0, "host": "n", "used_gib": 1.0, "device_gib": "x"}),
        ("attempt_ended", ("outcome", "fingerprint"), {"hosts": 5}),
        ("attempt_ended", ("outcome", "measured", "tokens_per_sec"), 1e308),
    ],
)
def test_a_sealed_journal_with_what_only_views_read_is_refused(searched: Path, kind: str, place, value: object):
    path = searched / "journal.jsonl"
    before = path.read_text()
    lines = before.splitlines()
    number = next(n for n, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    event = json.loads(lines[number])
    del event["crc32"]
    above = event["data"]
    for key in place[:-1]:
        above = above[key]
    above[place[-1]] = value
    lines[number] = sealed(json.dumps(event, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")
    for verb in ("status", "best", "report"):
        answer = parlay_here(verb, searched, "--json", cwd=searched)
        assert answer.code in (ExitCode.BAD_INPUT, ExitCode.REFUSED), answer.err
    path.write_text(before)


def test_a_journal_and_a_table_are_read_or_refused(searched: Path, tmp_path: Path):
    files: dict[str, tuple[Path, Change, Reader]] = {
        "journal.jsonl": (searched, changed_journal, lambda path: search_of(path, "a", Journal(path).read())),
        "table.csv": (searched.parents[1], changed_text, read_table),
    }
    for name, (folder, change, reader) in files.items():
        read_all(tmp_path / name, (folder / name).read_text(), change, reader, times=200)
