"""Causal attention over a rank's own heads, within a sequence or within each document, and rotary positions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import Any

import torch
import torch.nn.functional as F

from search_spaces.model_shape import ModelShape


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents of one micro-batch of B sequences of S tokens, each cut where its sequence begins or ends.

    `lengths` are those of each sequence. `positions` (B, S) count from 0 in each document. `ends` are those of all
    documents in the B x S tokens, a zero before them, as kernels for sequences of varying length take them.
    """

    lengths: tuple[tuple[int, ...], ...]
    positions: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], device: torch.device) -> Documents:
        positions = torch.stack([torch.cat([torch.arange(n) for n in of_one]) for of_one in lengths])
        ends = torch.tensor([0, *accumulate(chain.from_iterable(lengths))], dtype=torch.int32)
        return cls(tuple(map(tuple, lengths)), positions.to(device), ends.to(device))

    @property
    def longest(self) -> int:
        return max(map(max, self.lengths))


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    knows_groups: bool,
    window: int | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """(B, heads, S, D), and (B, key-value heads, S, D) twice -> (B, heads, S, D): causal attention, each key-value head
    shared by equally many neighbouring heads; `sinks`: a logit of each head that has no value."""
    heads_served = query.shape[1] // key.shape[1]
    # On a GPU the kernel that takes a mask, the memory-efficient one, takes no groups.
    if heads_served > 1 and not (knows_groups and sinks is None and window is None):
        key, value = (part.repeat_interleave(heads_served, 1) for part in (key, value))
    if sinks is not None:
        return _attention_with_sinks(query, key, value, window, sinks)
    is_grouped = key.shape[1] != query.shape[1]
    mask = None if window is None else _visible(query, window)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
    )


def attention_by_document(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    has_flash: bool,
    window: int | None,
    sinks: torch.Tensor | None,
    documents: Documents,
) -> torch.Tensor:
    """`attention` of each document by itself, so that its cost falls with their lengths: by one kernel for all where
    `has_flash` and such a kernel takes them, else one after another."""
    if has_flash and sinks is None and _has_varlen_kernel(query):
        return _varlen_attention(query, key, value, window, documents)
    knows_groups = supports_gqa(query, has_flash)
    queries, keys, values = (_split(part, documents) for part in (query, key, value))
    mixed = [attention(q, k, v, knows_groups, window, sinks) for q, k, v in zip(queries, keys, values, strict=True)]
    return _joined(mixed, documents)


def _has_varlen_kernel(query: torch.Tensor) -> bool:
    """True if FlashAttention's kernel for sequences of varying length takes these queries: from torch 2.11 on, on a
    GPU, in 16 bits."""
    is_on = query.is_cuda and torch.backends.cuda.flash_sdp_enabled() and _has_varlen_attn()
    return is_on and query.dtype != torch.float32 and query.shape[-1] <= _LARGEST_FLASH_HEAD


_LARGEST_FLASH_HEAD = 256


@cache
def _has_varlen_attn() -> bool:
    """True if torch's attention over sequences of varying length has today's parameters."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return "window_size" in inspect.signature(varlen_attn).parameters


def _varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, documents: Documents
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    batch, heads, tokens, _ = query.shape
    key, value = (part.repeat_interleave(heads // part.shape[1], 1) for part in (key, value))
    packed = [part.transpose(1, 2).flatten(0, 1) for part in (query, key, value)]
    ends, longest, back = documents.ends, documents.longest, -1 if window is None else window - 1
    attend: Any = varlen_attn
    mixed: torch.Tensor = attend(*packed, ends, ends, longest, longest, window_size=(back, 0))
    return mixed.unflatten(0, (batch, tokens)).transpose(1, 2)


def _split(part: torch.Tensor, documents: Documents) -> list[torch.Tensor]:
    """(B, heads, S, D) -> (1, heads, length, D) for each document."""
    sequences = zip(part.split(1), documents.lengths, strict=True)
    return [piece for sequence, lengths in sequences for piece in sequence.split(lengths, 2)]


def _joined(mixed: list[torch.Tensor], documents: Documents) -> torch.Tensor:
    """The inverse of `_split`."""
    pieces = iter(mixed)
    return torch.cat([torch.cat([next(pieces) for _ in lengths], 2) for lengths in documents.lengths])


def _attention_with_sinks(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None, sinks: torch.Tensor
) -> torch.Tensor:
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~_visible(query, window or query.shape[2]), -torch.inf)
    logits = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = torch.cat([scores.float(), logits.float()], -1).softmax(-1)
    return weights[..., :-1].to(value.dtype) @ value


def _visible(query: torch.Tensor, window: int) -> torch.Tensor:
    """(S, S): True where a position, the row, attends to another: itself and `window` - 1 before it."""
    position = torch.arange(query.shape[2], device=query.device)
    distance = position.unsqueeze(1) - position
    return (distance >= 0) & (distance < window)


def supports_gqa(query: torch.Tensor, has_flash: bool) -> bool:
    """True if the attention kernel accepts grouped heads. The memory-efficient one, the only one on a GPU for fp32 or
    without flash, needs a key-value head for each head. The plain products repeat them anyway."""
    return not query.is_cuda or (has_flash and query.dtype != torch.float32)


class Rotary:
    """Rotary positions (Su et al., arXiv 2104.09864), the first half of a head paired with the second as in Llama."""

    def __init__(self, model: ModelShape, device: torch.device):
        half = torch.arange(0, model.head_size, 2, device=device, dtype=torch.float32)
        frequencies = model.rotary_base ** (-half / model.head_size)
        angles = torch.arange(model.seq_length, device=device).unsqueeze(1) * frequencies
        self._cos, self._sin = angles.cos(), angles.sin()

    def __call__(self, x: torch.Tensor, documents: Documents | None = None) -> torch.Tensor:
        """(B, heads, S, head size) -> the same, each pair rotated by an angle proportional to its position."""
        cos, sin = (self._angles(part, x.shape[2], documents) for part in (self._cos, self._sin))
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

    def _angles(self, part: torch.Tensor, length: int, documents: Documents | None) -> torch.Tensor:
        """(S, half a head), or (B, 1, S, half a head) where positions are those in documents."""
        return part[:length] if documents is None else part[documents.positions].unsqueeze(1)
