"""Imports of all layouts of an engine, for a process from which their ranks are forked."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.layouts.layout import Layout

_LAYOUTS = (
    Layout(pipeline_parallel=2, activation_checkpointing="full"),
    Layout(data_parallel=2, zero_stage=3, offload="optimizer", activation_checkpointing="full"),
)
"""Layouts that together import what any does, but for torch's compiler."""


def import_engine(engine: str, on_cpu: bool) -> None:
    """Import what some rank of this engine imports, but for what compiled layouts need."""
    import trials.train.measurement.profile
    import trials.train.trial_run  # noqa: F401
    from trials.train.engines.factory import import_training

    for layout in _LAYOUTS:
        import_training(replace(layout, engine=engine), on_cpu)
