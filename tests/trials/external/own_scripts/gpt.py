"""A small GPT as people write one, for their scripts here. Nothing of Parlay's."""

from __future__ import annotations

import torch
from torch import nn


class Gpt(nn.Module):
    _no_split_modules = ("TransformerEncoderLayer",)

    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, length: int):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """The loss of tokens (sequences, length), each its own label where there are none."""
        x = self.embedding(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.embedding.weight.T
        labels = input_ids if labels is None else labels
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())}
