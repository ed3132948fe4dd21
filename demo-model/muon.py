"""Muon: momentum whose update is made orthogonal, for the matrices of the layers.

It needs about half the tokens that AdamW needs here, which matters on two CPU cores.
Source: Keller Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonalise(gradient: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards U V^T of gradient = U S V^T.  gradient: [rows, columns]"""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (gradient / (gradient.norm() + 1e-7)).bfloat16()  # six times as fast, and exact enough
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if tall else x).float()


class Muon(torch.optim.Optimizer):
    def __init__(self, params: list[Tensor], lr: float = 0.02, momentum: float = 0.95,
                 weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:  # noqa: ANN001 - the signature of torch
        for group in self.param_groups:
            for p in group["params"]:
                velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                velocity.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonalise(p.grad.lerp(velocity, group["momentum"]))
                scale = max(1.0, p.shape[0] / p.shape[1]) ** 0.5
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * scale)
