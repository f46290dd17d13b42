"""sights.json, and what NCCL is told before it begins."""

from __future__ import annotations

import json

from tests.orchestrator.diagnostics.doctor.test_node_findings import sights
from trials.protocols.node_probe import Sights
from trials.train.doctor.program import enable_nccl_log


def test_sights_are_read_as_they_were_written(tmp_path):
    assert Sights.read(tmp_path) is None
    sights(unseen=(3,)).write(tmp_path)
    assert Sights.read(tmp_path) == sights(unseen=(3,))
    assert json.loads((tmp_path / "sights.json").read_text())["schema"] == "parlay.sights/1"


def test_nccl_tells_in_the_ranks_log_whatever_was_set_for_other_runs():
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/elsewhere", "NCCL_NET": "IB"}
    enable_nccl_log(environ)
    assert environ == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_NET": "IB"}
