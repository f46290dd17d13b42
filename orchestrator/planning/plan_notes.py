"""Notes on a plan: assumptions behind its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from orchestrator.planning.plan import IN_DOUBT, LIKELY, UNLIKELY, Fits, Plan
from search_spaces.adapters import describe_trained
from search_spaces.cost_model.machine_speed import TYPICAL_GEMM_SHARE
from search_spaces.engines import ENGINE_PROFILES
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import FABRIC_KINDS
from search_spaces.layouts.placement import leaves_domain
from search_spaces.routing import BALANCED, SKEWED, Routing, micro_batches_of_losses
from search_spaces.rules.check import emulation_remark
from trials.files.text import plural

EXPANDABLE_SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True"
"""Variable with which torch's allocator grows its segments instead of adding others."""


def plan_notes(plan: Plan) -> list[str]:
    """Sentences on what the numbers of a plan assume, and on how sure they are."""
    cluster, has_experts = plan.task.cluster, plan.task.model.num_experts is not None
    emulated = emulation_remark(plan.layouts.values("engine"), cluster.accelerator.name)
    trained = describe_trained(plan.task.model)
    return [
        *([] if trained is None else [trained]),
        *_calibration_notes(plan),
        *assumed_speed_notes(cluster, has_experts),
        *([] if emulated is None else [emulated]),
        *(_expert_notes(plan) if has_experts else ()),
        *_memory_notes(plan),
    ]


def _calibration_notes(plan: Plan) -> Iterator[str]:
    if (summary := plan.prior_trials.summary) is not None:
        yield f"the cost model is calibrated on {summary}"
    else:
        yield "uncalibrated: no trial has corrected the cost model yet"
        yield from _stack_notes(plan.layouts.values("engine")) if plan.speed_is_known else ()
    yield from plan.prior_trials.remarks
    if plan.num_in_doubt:
        yield (
            f"{plan.num_in_doubt} of the next {plan.num_compared - 1} layouts may be faster than the first,"
            f" with a probability of {IN_DOUBT:.0%} or more: trials decide"
        )


def _stack_notes(engines: Iterable[str]) -> Iterator[str]:
    """Sentences on the stacks to whose published steps an engine's time model was fitted."""
    for engine in sorted(engines):
        stacks = " and ".join(ENGINE_PROFILES[engine].fitted_to)
        yield f"step times of engine {engine} were fitted to {stacks}; another release may be faster or slower"


def _routing_note(routing: Routing) -> str:
    """Note on the loads of experts that trials have, and by which memory is judged."""
    if routing.kind == SKEWED:
        return (
            f"measure.routing is {routing}: trials force {routing.skew:g} times the mean tokens on each layer's first"
            " expert; memory is judged by the rank that has it, times assume balanced experts"
        )
    if routing.kind == BALANCED:
        return (
            "measure.routing is balanced: trials force equally many tokens on all experts, as memory and times assume"
        )
    return (
        "measure.routing is learned: experts have the tokens that their router sends them; memory and times assume"
        " equally many"
    )


def assumed_speed_notes(cluster: Cluster, has_experts: bool) -> Iterator[str]:
    """Notes on speeds that are taken from data sheets and usual nodes, and that `parlay calibrate` measures."""
    accelerator, links = cluster.accelerator, cluster.links
    if accelerator.peak_flops and not (cluster.measured and cluster.measured.matmul_tflops):
        share = accelerator.gemm_share or TYPICAL_GEMM_SHARE
        yield f"GEMMs are assumed to reach {share:.0%} of a {accelerator.name}'s peak: `parlay calibrate` measures it"
    if cluster.links_are_assumed and cluster.num_gpus > 1:
        yield assumed_links_note(cluster)
    fabric = links.fabric if links is not None else None
    if has_experts and fabric is not None and fabric.all_to_all_gb_per_s is None and cluster.num_nodes > 1:
        share = FABRIC_KINDS[fabric.kind].all_to_all_share
        yield f"all-to-alls between nodes are assumed to reach {share:.0%} of the NICs (cluster.links.fabric.kind)"


def assumed_links_note(cluster: Cluster) -> str:
    """Note for a cluster whose links are assumed."""
    return (
        f"the links are assumed to be those of a typical {cluster.accelerator.name} node: measure yours with"
        " `parlay calibrate`, or describe them under cluster.links (docs/clusters.md)"
    )


def _expert_notes(plan: Plan) -> Iterator[str]:
    """Notes on a model with experts."""
    yield _routing_note(plan.task.routing)
    losses = micro_batches_of_losses(plan.layouts.values("micro_batch_size"))
    if plan.task.model.aux_loss_coefficient is not None and losses is not None:
        yield losses
    is_hybrid = plan.layouts.equals("expert_dispatcher", "hybridep")
    if (is_hybrid & leaves_domain(plan.layouts, "expert", plan.task.cluster)).any():
        yield (
            "HybridEP takes an expert group for one link domain: where a group leaves it, trials and recipes set"
            " NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN (NVIDIA-NeMo/Megatron-Bridge, issue 6043)"
        )


def _memory_notes(plan: Plan) -> Iterator[str]:
    """Notes on a machine of unknown speed, whose memory counts for tensors alone, and on what fits."""
    task = plan.task
    if not plan.speed_is_known:
        yield (
            f"the speed of a {task.cluster.accelerator.name} is unknown until `parlay calibrate` measures it:"
            " times are ratios, not seconds; memory is that of tensors only, a process needs more"
        )
    if (free_gib := task.min_free_memory_gib) and task.capacity_gib is not None:
        yield (
            f"a layout fits if it leaves {free_gib:g} GiB of the {task.capacity_gib:.4g} GiB that a rank can"
            " allocate (constraints.min_free_memory_gib)"
        )
    if all(fits is Fits.NO for fits in plan.fits):
        enough = " with that much left free" if free_gib else ""
        yield f"no layout is expected to fit into the ranks' memory{enough}"
    if count := _num_tight(plan):
        yield (
            f"whether {plural(count, 'layout')} fit is in doubt: memory in fragments may decide, for which"
            f" {EXPANDABLE_SEGMENTS} in space.env is a known cure"
        )


def _num_tight(plan: Plan) -> int:
    """Layouts on GPUs that may or may not fit, with torch's usual allocator."""
    if plan.task.capacity_gib is None or plan.task.cluster.accelerator.name == "cpu":
        return 0
    fits = plan.estimates.fit_probability
    is_usual = plan.layouts.column_of(lambda layout: "expandable_segments" not in layout.settings)
    return int(np.sum((fits > UNLIKELY) & (fits < LIKELY) & is_usual.astype(bool)))
