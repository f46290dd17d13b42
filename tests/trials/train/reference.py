"""A plain GPT in plain torch: shares no layer, loss, clipping or optimizer code with the trial program."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from search_spaces.model_shape import ModelShape
from trials.train.model import Stage


class PlainBlock(nn.Module):
    def __init__(self, model: ModelShape):
        super().__init__()
        h = model.hidden_size
        self.heads = model.num_attention_heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.attention_out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.mlp_in, self.mlp_out = nn.Linear(h, model.ffn_hidden_size), nn.Linear(model.ffn_hidden_size, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention_out(self.attend(self.qkv(self.attention_norm(x))))
        return x + self.mlp_out(nn.GELU(approximate="tanh")(self.mlp_in(self.mlp_norm(x))))

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        b, s, width = qkv.shape
        q, k, v = qkv.view(b, s, 3, self.heads, width // 3 // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        future = torch.ones(s, s, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return mixed.permute(0, 2, 1, 3).reshape(b, s, width // 3)


class PlainGpt(nn.Module):
    def __init__(self, model: ModelShape):
        super().__init__()
        self.tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        self.positions = nn.Embedding(model.seq_length, model.hidden_size)
        self.blocks = nn.ModuleList(PlainBlock(model) for _ in range(model.num_layers))
        self.norm = nn.LayerNorm(model.hidden_size)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        if model.tied_embeddings:
            self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def copy_weights(self, stage: Stage) -> None:
        """Take over the initial weights of the whole model as one stage of one rank."""
        theirs = {name.replace("embedding.tokens", "tokens"): p for name, p in stage.state_dict().items()}
        theirs["positions.weight"] = theirs.pop("embedding.positions")
        theirs |= {f"norm.{part}": theirs.pop(f"head.norm.{part}") for part in ("weight", "bias")}
        self.load_state_dict(theirs)


def train_plainly(
    gpt: PlainGpt,
    steps: list[list[tuple[torch.Tensor, torch.Tensor]]],
    learning_rate: float,
    epsilon: float,
    max_grad_norm: float,
    autocast_bf16: bool,
) -> tuple[list[float], list[float]]:
    """(losses, gradient norms before clipping), one of each a step of several micro-batches."""
    optimizer = torch.optim.AdamW(
        gpt.parameters(), lr=learning_rate, betas=(0.9, 0.95), eps=epsilon, weight_decay=0.01, foreach=False
    )
    losses, norms = [], []
    for micro_batches in steps:
        optimizer.zero_grad()
        total = 0.0
        for ids, targets in micro_batches:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast_bf16):
                loss = F.cross_entropy(gpt(ids).flatten(0, 1), targets.flatten())
            (loss / len(micro_batches)).backward()
            total += loss.item() / len(micro_batches)
        norms.append(nn.utils.clip_grad_norm_(gpt.parameters(), max_grad_norm).item())
        optimizer.step()
        losses.append(total)
    return losses, norms
