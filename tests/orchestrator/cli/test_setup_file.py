"""A setup file is shown before any job sources it."""

from __future__ import annotations

import pytest

from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.cli.parlay import TINY_SEARCH, parlay_here, write_search

SEARCH = TINY_SEARCH.replace("{kind: local}", "{kind: slurm, slurm: {setup_file: my setup.sh}}")
SETUP = "module purge\n\techo \x1b[31mred\n"
SHOWN = "  module purge\n          echo \\x1b[31mred"


@pytest.mark.security("setup_file")
def test_a_plan_shows_what_the_jobs_will_source(tmp_path):
    (tmp_path / "my setup.sh").write_text(SETUP)
    path = write_search(tmp_path, SEARCH)
    shown = parlay_here("plan", path, cwd=tmp_path)
    assert shown.out.endswith(f"each job sources a copy of {tmp_path}/my setup.sh:\n{SHOWN}\n")
    found = parlay_here("plan", path, "--json", cwd=tmp_path).json
    assert found["setup_file"] == {"path": f"{tmp_path}/my setup.sh", "text": SETUP}
    local = parlay_here("plan", path, "--launcher", "local", "--json", cwd=tmp_path).json
    assert local["setup_file"] is None


@pytest.mark.security("setup_file")
@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_dry_run_shows_it_too(tmp_path, monkeypatch, slurm_sandbox: SlurmSandbox):
    (tmp_path / "my setup.sh").write_text(SETUP)
    path = write_search(tmp_path, SEARCH)
    monkeypatch.setenv("SLURM_CONF", slurm_sandbox.environment["SLURM_CONF"])
    shown = parlay_here("run", path, "--dry-run", "--set", "launcher.slurm.site=plain", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert shown.out.endswith(f"{SHOWN}\n")
    assert "site plain: A plain cluster: community profile" in shown.err
    assert {entry.name for entry in tmp_path.iterdir()} == {"search.yaml", "my setup.sh"}
