"""Forced routing: experts of each token that depend on its position alone, so that all steps have the same loads."""

from __future__ import annotations

import torch

from search_spaces.routing import Routing


def forced_choice(routing: Routing, tokens: int, num_experts: int, top_k: int, device: torch.device) -> torch.Tensor:
    """Different experts of each of these tokens, (N, k), for a routing that is balanced or skewed.

    Balanced experts take turns, as in torchtitan/models/common/moe.py `_debug_force_load_balance_routing`. Skewed, the
    first expert has its share of tokens, evenly among them, and the others take turns.
    """
    assert routing.skew is not None
    slots = torch.arange(top_k, device=device)
    if routing.skew == 1:
        return (torch.arange(tokens, device=device)[:, None] * top_k + slots) % num_experts
    passes_first = min(tokens, round(routing.skew * tokens * top_k / num_experts))
    due = torch.arange(tokens + 1, device=device) * passes_first // tokens
    is_due = due.diff()
    others = num_experts - 1
    before = torch.arange(tokens, device=device) * top_k - due[:-1]
    chosen = 1 + (before[:, None] + slots) % others
    chosen[:, -1] = torch.where(is_due > 0, 0, chosen[:, -1])
    return chosen
