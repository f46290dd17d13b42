"""Checks of the packages that engines of others need: those installed against those verified. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, warning
from orchestrator.planning.candidates import valid_candidates
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN, engines_of
from trials.diagnostics.node_probe import RankProbe
from trials.ranks.engine_packages import (
    FLASH_ATTENTION,
    PACKAGED_ENGINES,
    TORCH,
    TORCHAO,
    TRANSFORMER_ENGINE,
    TRANSFORMERS,
    VERIFIED,
    Installed,
    package_faults,
    packages_of,
)

_NAMES = {
    MEGATRON_CORE: "megatron_core",
    TRANSFORMER_ENGINE: "transformer_engine",
    FLASH_ATTENTION: "flash_attn",
    TORCHTITAN: "torchtitan",
    TORCH: "torch_of_torchtitan",
    ACCELERATE: "accelerate",
    TRANSFORMERS: "transformers",
    TORCHAO: "torchao",
}


def engines_of_search(spec: SearchSpec) -> set[str]:
    """Engines that the search tries."""
    return {*spec.space.given_axes().get("engine", ()), *(layout.engine for layout in spec.candidates or ())}


def package_findings(installed: Installed, python: str, spec: SearchSpec) -> Iterator[Finding]:
    """Findings on one interpreter's packages; none for a search without an engine that is a package."""
    if not (engines := _packaged_engines(spec)):
        return
    accelerator = spec.cluster.accelerator.name
    found = (package_faults(layout, spec.model, accelerator, installed) for layout in valid_candidates(spec))
    faults = dict.fromkeys(chain.from_iterable(found))
    for fault in faults:
        yield error(_NAMES[fault.package], f"{python}: {fault.message}, but {fault.rule}", fault.fix)
    faulty = {fault.package for fault in faults}
    for package in (package for engine in engines for package in packages_of(engine)):
        if package not in faulty:
            words = f"{package} {installed[package]}, verified with {VERIFIED[package]}"
            yield ok(_NAMES[package], f"{python}: {words}")
    if MEGATRON_CORE in engines and accelerator != "cpu" and TRANSFORMER_ENGINE not in faulty:
        yield _transformer_engine_finding(installed[TRANSFORMER_ENGINE], python)


def node_package_findings(ranks: Sequence[RankProbe], spec: SearchSpec) -> Iterator[Finding]:
    """Findings on the packages of the nodes, which have to be the same on all of them."""
    if not (engines := _packaged_engines(spec)):
        return
    found = {tuple(rank.packages.items()): rank for rank in reversed(ranks)}
    if len(found) == 1:
        yield from package_findings(ranks[0].packages, ranks[0].executable, spec)
        return
    words = "; ".join(f"{rank.node} has {_format(rank.packages)}" for rank in found.values())
    fix = "have trainer.python name one that all nodes share"
    yield error(_NAMES[engines[0]], f"the nodes' packages differ: {words}", fix)


def _format(installed: Installed) -> str:
    return ", ".join(f"{name} {version}" for name, version in installed.items() if version) or "none of them"


def _packaged_engines(spec: SearchSpec) -> list[str]:
    searched = engines_of_search(spec).intersection(engines_of(spec.trainer.kind))
    return [engine for engine in PACKAGED_ENGINES if engine in searched]


def _transformer_engine_finding(found: str | None, python: str) -> Finding:
    name, verified = _NAMES[TRANSFORMER_ENGINE], VERIFIED[TRANSFORMER_ENGINE]
    fix = f"pip install '{TRANSFORMER_ENGINE}[pytorch]{verified}'"
    if found is None:
        words = f"{python} has no {TRANSFORMER_ENGINE}: ranks take {MEGATRON_CORE}'s own layers, which are slower"
        return note(name, words, fix)
    if found not in verified:
        words = f"{python} has {TRANSFORMER_ENGINE} {found}; {MEGATRON_CORE} names {verified}"
        return warning(name, words, fix)
    return ok(name, f"{python}: {TRANSFORMER_ENGINE} {found}, {MEGATRON_CORE} names {verified}")
