"""Hosts of the ranks, and flags for a device that is slower than the others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from search_spaces.layouts.layout import Layout
from tests.trials.examples import OUTCOME
from tests.trials.train.trial_processes import make_spec
from trials.attempt_result import COMPARABLE
from trials.train.parallel.device import Device
from trials.train.parallel.gather import RankHost
from trials.train.proof.fingerprint import fingerprint
from trials.train.trial_run import flags_of

CPU = Device(torch.device("cpu"))
SPEC = make_spec(Layout(tensor_parallel=4))
WELL = [RankHost("n1", 1.0), RankHost("n1", 1.02), RankHost("n2", 0.98), RankHost("n2", 1.0)]
ONE_SLOW = [*WELL[:3], RankHost("n2", 1.4)]
OF_CPUS = [RankHost("n1", None), RankHost("n2", None)]


def loop_with(*flags: str):
    """A loop that ended with these flags."""
    return SimpleNamespace(flags=flags)


@pytest.mark.fault(38)
def test_a_slow_device_makes_the_measurement_suspect_and_its_host_is_named():
    assert flags_of(loop_with(), ONE_SLOW, OUTCOME.metrics) == ("suspect_node",)
    found = fingerprint(SPEC, CPU, ONE_SLOW)
    assert found["probe_ms_by_rank"] == [1.0, 1.02, 0.98, 1.4]
    assert found["slow_hosts"] == ["n2"]


@pytest.mark.fault(38)
def test_devices_that_are_alike_are_no_reason_for_suspicion():
    assert flags_of(loop_with("time_limit"), WELL, OUTCOME.metrics) == ("time_limit",)
    assert "slow_hosts" not in fingerprint(SPEC, CPU, WELL)


@pytest.mark.fault(38)
def test_a_drift_and_a_slow_device_are_one_flag():
    assert flags_of(loop_with("time_limit", "suspect_node"), ONE_SLOW, OUTCOME.metrics) == (
        "time_limit",
        "suspect_node",
    )


def test_what_was_not_probed_is_absent():
    assert flags_of(loop_with(), OF_CPUS, OUTCOME.metrics) == ()
    assert not {"probe_ms_by_rank", "slow_hosts"} & set(fingerprint(SPEC, CPU, OF_CPUS))


def test_hosts_are_named_once_in_the_order_of_their_ranks(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    found = fingerprint(SPEC, CPU, [RankHost(host, None) for host in ("n7", "n7", "n2", "n2")])
    assert found["hosts"] == ["n7", "n2"]
    assert "job_id" not in found


def test_where_a_trial_ran_does_not_make_it_another_machine():
    assert not {"job_id", "hosts", "probe_ms_by_rank", "slow_hosts", "host"} & set(COMPARABLE)


def layers_of(module: str) -> torch.nn.Module:
    """A model chunk with one layer whose class derives from one of this module."""
    base = type("Linear", (torch.nn.Module,), {"__module__": module})
    return torch.nn.Sequential(type("Derived", (base,), {"__module__": "megatron.core.extensions"})())


@pytest.mark.parametrize(
    ("module", "layers"),
    [("transformer_engine.pytorch.module", "transformer_engine"), ("megatron.core.tensor_parallel", "local")],
)
def test_the_layers_that_megatron_core_took_are_asked_of_the_chunks(monkeypatch, module, layers):
    monkeypatch.setattr("trials.train.proof.fingerprint.package_version", {"transformer-engine": "2.9.0"}.get)
    spec = make_spec(Layout(tensor_parallel=4, engine="megatron-core"))
    found = fingerprint(spec, CPU, WELL, [layers_of(module)])
    assert found["megatron_layers"] == layers
    assert found.get("transformer_engine") == ("2.9.0" if layers == "transformer_engine" else None)
    assert "megatron_layers" not in fingerprint(SPEC, CPU, WELL, [layers_of(module)])
