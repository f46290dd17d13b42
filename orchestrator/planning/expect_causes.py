"""What may make a training slow, each with its evidence and what would show it. Pure; numpy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.config.answer import AnswerPart
from orchestrator.planning.expected_rate import Expected, Training, Z
from search_spaces.cost_model.constants import PRIORS
from search_spaces.cost_model.posterior import TimePrior


class SlowCause(AnswerPart):
    """What may make this training slow."""

    cause: str
    tokens_per_sec: float
    """The speed that it would give, at most `factor` times as slow."""
    factor: float | None
    """Times by which its part would have to be slower than expected; null for a setting, which is so or not."""
    explains: bool
    """True if it gives the measured speed: a setting's interval has it, a part is less than 10 times as slow."""
    evidence: str
    """Why it may be so, from the parts of the expected step, the source or the log."""
    shown_by: str
    """What would show it."""


def causes_of(training: Training, measured: float, text: str) -> list[SlowCause]:
    """What explains a slow training, likeliest first: what the source or the log says, then what needs the least
    deviation from what is usual, then what explains a part, the largest first. `text` is the source and the log."""
    text = re.sub(r"(?m)^\s*#.*$", "", text)
    shares, usual, found = _shares(training), Expected.of(training).interval[1], []
    for hypothesis in HYPOTHESES:
        if (evidence := hypothesis.evidence(training, shares, text)) is None:
            continue
        factor, rate, off = hypothesis.weigh(training, measured)
        explains = off <= Z if factor is None else factor < _MOST
        if rate < _NOTICEABLE * usual:
            of_it = {"cause": hypothesis.name, "evidence": evidence, "shown_by": hypothesis.shown_by}
            order = (not hypothesis.is_found, not explains, off if explains else rate)
            found.append((order, SlowCause(**of_it, tokens_per_sec=rate, factor=factor, explains=explains)))
    return [cause for _, cause in sorted(found, key=lambda each: each[0])]


_NOTICEABLE = 0.95
"""Largest share of the expected rate at which a cause is told."""
_MOST = 10.0
"""Largest factor that is told: a part slower than that is broken in another way."""
_HALVINGS = 20

Evidence = Callable[[Training, Mapping[str, float], str], str | None]
"""Of a training, the shares of its step, and the text; None where nothing points to it."""


@dataclass(frozen=True)
class _Hypothesis:
    """A cause that may be: another layout, or constants of the time model that are slower. `is_found` where its
    evidence stands in the source or the log."""

    name: str
    evidence: Evidence
    shown_by: str
    layout: Mapping[str, Any] | None = None
    slower: tuple[str, ...] = ()
    is_found: bool = False

    def weigh(self, training: Training, measured: float) -> tuple[float | None, float, float]:
        """The factor on its constants, None for a setting, the rate that it gives, and how far off that is, in
        deviations."""
        if not self.slower:
            expected = Expected.of(replace(training, layout=replace(training.layout, **self.layout or {}).canonical()))
            return None, expected.interval[1], abs(expected.deviations(measured))
        low, high = 0.0, math.log(_MOST)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._slowed(training, middle) > measured else (low, middle)
        return math.exp(high), self._slowed(training, high), high / PRIORS[self.slower[0]].log_sd

    def _slowed(self, training: Training, log_factor: float) -> float:
        return Expected.of(training, dict.fromkeys(self.slower, math.exp(log_factor))).interval[1]


def _shares(training: Training) -> dict[str, float]:
    """Parts of the expected step, as shares, with `host`: launches over the device's time."""
    terms, constants = training.terms, TimePrior.default().constants
    parts = {name: float(seconds[0]) for name, seconds in terms.parts(constants).items()}
    of_host = float(terms.host_s[0] / terms.device.seconds(constants)[0])
    return {**{name: each / sum(parts.values()) for name, each in parts.items()}, "host": of_host}


def _links_variable(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    return _set_in(text, r"NCCL_(?:P2P|IB|SHM)_DISABLE", "1") or _set_in(text, "NCCL_NET", "Socket")


def _host_variable(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    return _set_in(text, "CUDA_LAUNCH_BLOCKING", "1") or _set_in(text, "TORCH_DISTRIBUTED_DEBUG", "DETAIL")


def _set_in(text: str, names: str, value: str) -> str | None:
    """What sets a variable, in a script, JSON, YAML, Python, a Dockerfile or NCCL's log."""
    sets = rf"[\"']?\]?\s*(?:[=: ]|set by environment to)\s*[\"']?{value}\b"
    found = re.search(rf"\b({names}){sets}", text)
    return f"the source or the log sets {found[1]} to {value}" if found else None


def _fused_attention(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    kernel = training.layout.attention_kernel
    return None if kernel == "math" else f"attention_kernel is {kernel}, which a trainer may fall back from"


def _recomputes(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    if training.layout.activation_checkpointing != "none":
        return None
    of_megatron = "--recompute-(?:granularity|activations)|--checkpoint-activations"
    found = re.search(rf"{of_megatron}|gradient_checkpointing[\"']?\s*[=: ]\s*[Tt]rue", text)
    return f"the source has {found[0]}, and no recomputation is expected" if found else None


def _low_precision(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    word = training.layout.matmul_precision
    return None if word == "same" else f"GEMMs are expected in {word}"


def _launches(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    return f"launches take {shares['host']:.0%} of the device's time" if shares["host"] >= 0.2 else None


def _network(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    share = sum(shares[name] for name in ("tensor", "context", "expert", "pipeline", "data_parallel"))
    return f"communication is {share:.0%} of the expected step" if share >= 0.03 else None


def _routes(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    experts = training.model.num_experts
    return None if experts is None else f"each token chooses among {experts} experts; balanced ones are expected"


def _slow_node(training: Training, shares: Mapping[str, float], text: str) -> str | None:
    nodes, found = training.layout.num_nodes, re.search(r"straggler|slowest rank", text)
    return f"{nodes} nodes wait for the slowest, and the log names {found[0]}" if nodes > 1 and found else None


_LINKS = ("collectives", "dispatch", "sharded", "pipeline", "data_parallel")
HYPOTHESES: tuple[_Hypothesis, ...] = (
    _Hypothesis(
        "a variable that slows links", _links_variable, "unset it and measure again", slower=_LINKS, is_found=True
    ),
    _Hypothesis(
        "a variable that slows the host",
        _host_variable,
        "unset it and measure again",
        slower=("launches",),
        is_found=True,
    ),
    _Hypothesis(
        "no flash attention",
        _fused_attention,
        "a profile names flash, fmha or cudnn kernels where it is active",
        layout={"attention_kernel": "math"},
    ),
    _Hypothesis(
        "recomputation that the layout does not have",
        _recomputes,
        "print the resolved configuration; memory falls with it",
        layout={"activation_checkpointing": "full"},
        is_found=True,
    ),
    _Hypothesis(
        "low precision is not active",
        _low_precision,
        "a profile names fp8 or fp4 GEMM kernels where it is active",
        layout={"matmul_precision": "same", "quantized_weights": False},
    ),
    _Hypothesis(
        "host-bound launches",
        _launches,
        "gaps between kernels in a profile; CUDA graphs or torch.compile close them",
        slower=("launches",),
    ),
    _Hypothesis(
        "a slow network",
        _network,
        "parlay calibrate, or nccl-tests' bus bandwidth beside the NICs' rate",
        slower=_LINKS,
    ),
    _Hypothesis(
        "unbalanced routing of experts",
        _routes,
        "tokens of each expert in a step, or a run with forced balance",
        slower=("experts", "dispatch"),
    ),
    _Hypothesis(
        "one slow node",
        _slow_node,
        "the fabric check of `parlay run`, or the times of each rank",
        slower=("machine",),
        is_found=True,
    ),
)
