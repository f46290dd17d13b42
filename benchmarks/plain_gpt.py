"""Reference of the trainer benchmark: a GPT in plain PyTorch, and its training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from search_spaces.model_shape import ModelShape

LEARNING_RATE = 1e-3
MAX_GRAD_NORM = 1.0


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
        return x + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x)), approximate="tanh"))

    def attend(self, qkv: torch.Tensor) -> torch.Tensor:
        b, s, width = qkv.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2) for part in qkv.split(width // 3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, width // 3)


class PlainGpt(nn.Module):
    """GPT-2's shape: ids (B, S) -> logits (B, S, V)."""

    def __init__(self, model: ModelShape):
        super().__init__()
        self.tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        self.positions = nn.Embedding(model.seq_length, model.hidden_size)
        self.blocks = nn.ModuleList(PlainBlock(model) for _ in range(model.num_layers))
        self.norm = nn.LayerNorm(model.hidden_size)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainTrainer:
    """Accumulation, clipping and AdamW around a `PlainGpt` in fp32."""

    def __init__(self, model: ModelShape, device: torch.device):
        self._gpt = PlainGpt(model).to(device)
        is_cuda = device.type == "cuda"
        self._optimizer = torch.optim.AdamW(self._gpt.parameters(), lr=LEARNING_RATE, fused=is_cuda)

    def train_step(self, ids: torch.Tensor, targets: torch.Tensor, micro_batches: int) -> None:
        """One optimizer step on ids and targets (micro-batches x B, S)."""
        self._optimizer.zero_grad()
        for inputs, wanted in zip(ids.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            loss = F.cross_entropy(self._gpt(inputs).flatten(0, 1), wanted.flatten())
            (loss / micro_batches).backward()
        nn.utils.clip_grad_norm_(self._gpt.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
