"""A Qwen 3.5 decoder whose layers all attend, and its MTP block, in plain PyTorch.

Weights are kept in the layout of GGUF, so that export is a copy: rotary pairs are the halves of a
head (i, i + 16), and the query matrix has the gate of each head behind its query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

QUERY_BLOCK = 256  # positions whose attention is computed at once


class Norm(nn.RMSNorm):
    """In the type of its input, so that PyTorch's fused operation applies."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


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
    """x: [batch, heads, time, head_dim]; rotates pairs of halves."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_dim
        self.q = nn.Linear(config.width, 2 * config.width, bias=False)
        self.k = nn.Linear(config.width, kv_width, bias=False)
        self.v = nn.Linear(config.width, kv_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)
        self.q_norm = Norm(config.head_dim, eps=config.norm_eps)
        self.k_norm = Norm(config.head_dim, eps=config.norm_eps)
        future = torch.full((config.context, config.context), float("-inf")).triu(1)
        self.register_buffer("mask", future, persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        c = self.config

        def heads(y: Tensor, count: int) -> Tensor:
            return y.view(batch, time, count, c.head_dim).transpose(1, 2)

        q, gate = self.q(x).view(batch, time, c.heads, 2, c.head_dim).unbind(3)
        q = rotate(self.q_norm(q).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(heads(self.k(x), c.kv_heads)), cos, sin)
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
        y = torch.cat(parts, dim=2).transpose(1, 2) * gate.sigmoid()
        return self.output(y.reshape(batch, time, width))


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
        self.attention_norm = Norm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = Norm(config.width, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.ffn(self.ffn_norm(x))


class Mtp(nn.Module):
    """Predicts the token after next, from a token's embedding and the state before it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token_norm = Norm(config.width, eps=config.norm_eps)
        self.state_norm = Norm(config.width, eps=config.norm_eps)
        self.entry = nn.Linear(2 * config.width, config.width, bias=False)
        self.layer = Layer(config)
        self.norm = Norm(config.width, eps=config.norm_eps)

    def forward(self, tokens: Tensor, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Embeddings and states, [batch, time, width] each -> the next states."""
        x = self.entry(torch.cat((self.token_norm(tokens), self.state_norm(states)), dim=-1))
        return self.norm(self.layer(x, cos, sin))


class Qwen(nn.Module):
    """The output head is the embedding (tied)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.width, eps=config.norm_eps)
        self.mtp = Mtp(config)
        cos, sin = rope_table(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        # Every layer starts as the identity: its two outputs into the residual stream are zero.
        for layer in [*self.layers, self.mtp.layer]:
            nn.init.zeros_(layer.attention.output.weight)
            nn.init.zeros_(layer.ffn.down.weight)

    def states(self, ids: Tensor) -> Tensor:
        """ids: [batch, time] -> what the output head reads: [batch, time, width]"""
        time = ids.shape[1]
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos[:time], self.sin[:time])
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        return F.linear(states, self.embedding.weight)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, time] -> logits: [batch, time, vocab]"""
        return self.logits(self.states(ids))

    def guesses(self, ids: Tensor, states: Tensor, depth: int) -> list[Tensor]:
        """Logits of the tokens 2, 3, ... after each, `depth` times: [batch, time - n, vocab].

        The block's own states stand for the model's after the first.  Nothing of it moves the
        model's own weights but the embedding.
        """
        found, states, time = [], states.detach(), ids.shape[1]
        for first in range(1, depth + 1):
            tokens = self.embedding(ids[:, first:])
            states = self.mtp(tokens, states[:, :-1], self.cos[first:time], self.sin[first:time])
            found.append(self.logits(states))
        return found

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


@torch.no_grad()
def greedy(model: Qwen, ids: list[int], stop: int, limit: int = 200) -> list[int]:
    """The most likely continuation, recomputed from the start for every token: slow and plain."""
    out: list[int] = []
    while len(out) < limit and len(ids) + len(out) < model.config.context:
        logits = model(torch.tensor([ids + out]))[0, -1]
        token = int(logits.argmax())
        if token == stop:
            break
        out.append(token)
    return out
