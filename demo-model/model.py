"""A Llama decoder in plain PyTorch, small enough to read in one go.

Weights are kept in the layout of GGUF: rotary pairs are neighbours (2i, 2i+1), as in Meta's
original checkpoints, so that export is a copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QUERY_BLOCK = 256  # positions whose attention is computed at once


@dataclass(frozen=True)
class Config:
    vocab: int = 1536
    width: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    ffn: int = 768
    context: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def rope_table(config: Config) -> tuple[Tensor, Tensor]:
    """cos and sin, each [context, head_dim / 2] f32."""
    half = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    angle = torch.arange(config.context).float()[:, None] * config.rope_base ** -half
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [batch, heads, time, head_dim]; rotates neighbouring pairs."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_dim
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, kv_width, bias=False)
        self.v = nn.Linear(config.width, kv_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)
        future = torch.full((config.context, config.context), float("-inf")).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        c = self.config

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(batch, time, count, c.head_dim).transpose(1, 2)

        q = rotate(heads(self.q(x), c.heads), cos, sin)
        k = rotate(heads(self.k(x), c.kv_heads), cos, sin)
        v = heads(self.v(x), c.kv_heads)
        group = c.heads // c.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        # Spelled out, and without most of what the mask hides: on a CPU this is faster than the
        # fused operation of PyTorch.
        q, k = q.to(v.dtype), k.to(v.dtype)
        parts = []
        for start in range(0, time, QUERY_BLOCK):
            stop = min(start + QUERY_BLOCK, time)
            scores = q[:, :, start:stop] @ k[:, :, :stop].transpose(-1, -2) * c.head_dim**-0.5
            scores = scores + self.mask[start:stop, :stop].to(q.dtype)
            parts.append(scores.softmax(dim=-1).to(v.dtype) @ v[:, :, :stop])
        y = torch.cat(parts, dim=2)
        return self.output(y.transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.ffn, bias=False)
        self.up = nn.Linear(config.width, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """The output head is the embedding (tied)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        cos, sin = rope_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        # Every layer starts as the identity: its two outputs into the residual stream are zero.
        for layer in self.layers:
            nn.init.zeros_(layer.attention.output.weight)
            nn.init.zeros_(layer.ffn.down.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, time] -> logits: [batch, time, vocab]"""
        time = ids.shape[1]
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:time], self.sin[:time])
        return F.linear(self.norm(x), self.embedding.weight)

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


@torch.no_grad()
def greedy(model: Llama, ids: list[int], stop: int, limit: int = 200) -> list[int]:
    """The most likely continuation, recomputed from the start for every token: slow and plain."""
    out: list[int] = []
    while len(out) < limit and len(ids) + len(out) < model.config.context:
        logits = model(torch.tensor([ids + out]))[0, -1]
        token = int(logits.argmax())
        if token == stop:
            break
        out.append(token)
    return out
