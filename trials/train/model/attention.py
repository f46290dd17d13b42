"""Causal attention over a rank's own heads, and rotary positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from search_spaces.model_shape import ModelShape


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
    if heads_served > 1 and not (knows_groups and sinks is None):
        key, value = (part.repeat_interleave(heads_served, 1) for part in (key, value))
    if sinks is not None:
        return _attention_with_sinks(query, key, value, window, sinks)
    is_grouped = key.shape[1] != query.shape[1]
    mask = None if window is None else _visible(query, window)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=is_grouped
    )


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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(B, heads, S, head size) -> the same, each pair rotated by an angle proportional to its position."""
        cos, sin = self._cos[: x.shape[2]], self._sin[: x.shape[2]]
        first, second = x.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)
