"""Energy meter of a rank's device, with stand-ins for NVML, AMD SMI and the CUDA calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from trials.measurement.energy import RankEnergy
from trials.train.parallel import energy
from trials.train.parallel.device import Device
from trials.train.parallel.energy import EnergyMeter

GPU = Device(torch.device("cuda", 0))


@pytest.fixture
def counter(monkeypatch) -> SimpleNamespace:
    """A GPU that has used `joules` so far, at the time `now`, by NVML and by AMD SMI in units of 15.3 uJ."""
    found = SimpleNamespace(joules=100.0, now=50.0)
    monkeypatch.setattr(energy, "time", SimpleNamespace(monotonic=lambda: found.now))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="aaaa"))
    monkeypatch.setattr(energy, "nvml_or_none", lambda: SimpleNamespace(energy_j=lambda uuid: found.joules))
    names = ("energy_accumulator", "counter_resolution", "timestamp")
    counted = SimpleNamespace(
        amdsmi_get_energy_count=lambda handle: dict(zip(names, (found.joules * 1e6 / 15.3, 15.3, 1), strict=True))
    )
    monkeypatch.setattr(torch.cuda, "amdsmi", counted, raising=False)
    monkeypatch.setattr(torch.cuda, "_get_amdsmi_handler", lambda device: "handle")
    return found


def measured(meter: EnergyMeter, begins: bool = True) -> RankEnergy:
    if begins:
        meter.begin()
    meter.end()
    return meter.used()


@pytest.mark.parametrize(("hip", "library"), [(None, "nvml"), ("6.4", "amdsmi")])
def test_what_the_counter_advances_between_begin_and_end_is_used(monkeypatch, counter, hip, library):
    monkeypatch.setattr(torch.version, "hip", hip)
    meter = EnergyMeter(GPU)
    meter.begin()
    counter.joules, counter.now = 2100.0, 54.0
    used = measured(meter, begins=False)
    assert (meter.library, used.gpu) == (library, "aaaa")
    assert (used.joules, used.seconds) == (pytest.approx(2000.0), 4.0)


def test_a_driver_without_a_counter_a_cpu_and_a_trial_without_measured_steps_have_none(monkeypatch, counter):
    counter.joules = None
    assert measured(EnergyMeter(GPU)) == RankEnergy("aaaa")
    assert measured(EnergyMeter(GPU), begins=False) == RankEnergy(None)
    of_cpu = EnergyMeter(Device(torch.device("cpu")))
    assert (of_cpu.library, measured(of_cpu)) == (None, RankEnergy(None))


def test_a_library_that_fails_leaves_the_energy_unknown(monkeypatch, counter):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.delattr(torch.cuda, "_get_amdsmi_handler")
    assert measured(EnergyMeter(GPU)).joules is None
