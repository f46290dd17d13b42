"""The modules of torch and DeepSpeed that a layout's training imports besides its engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import Layout
from trials.train.engines.imports import deepspeed_modules, torch_modules

ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
DP2 = replace(ONE, data_parallel=2)


@pytest.mark.parametrize("layout", [ONE, replace(DP2, zero_stage=1), replace(DP2, engine="deepspeed", zero_stage=3)])
def test_the_compiler_is_imported_where_a_layout_needs_it_only(layout):
    assert "torch._dynamo" not in list(torch_modules(layout))
    for needs_it in ("full", "selective"):
        assert "torch._dynamo" in list(torch_modules(replace(layout, activation_checkpointing=needs_it)))
    assert "torch._inductor.compile_fx" in list(torch_modules(replace(layout, torch_compile=True)))


def test_an_optimizer_that_zero_imports_is_not_imported_without_it():
    plain = replace(DP2, engine="deepspeed")
    more = {*deepspeed_modules(replace(plain, zero_stage=1))} - {*deepspeed_modules(plain)}
    assert more == {"deepspeed.runtime.zero.muon.muon_optimizer"}
