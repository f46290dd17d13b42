"""node_probe.json, and NCCL's settings before its start."""

from __future__ import annotations

import json

from tests.orchestrator.diagnostics.doctor.test_nodes import probe
from trials.diagnostics.node_probe import NodeProbeReport
from trials.train.doctor.program import enable_nccl_log


def test_sights_are_read_as_they_were_written(tmp_path):
    assert NodeProbeReport.read(tmp_path) is None
    probe(unseen=(3,)).write(tmp_path)
    assert NodeProbeReport.read(tmp_path) == probe(unseen=(3,))
    assert json.loads((tmp_path / "node_probe.json").read_text())["schema"] == "parlay.node_probe/1"


def test_nccl_tells_in_the_ranks_log_whatever_was_set_for_other_runs():
    environ = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/tmp/elsewhere", "NCCL_NET": "IB"}
    enable_nccl_log(environ)
    assert environ == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_NET": "IB"}
