"""Trains the tokenizer and the model from nothing, and exports the GGUF.

    python train.py --out sinew-demo.gguf --work /tmp/sinew-demo

Everything follows from the seed and the number of steps.  Checkpoints go to the work folder;
`--start` continues from one, or from a GGUF that was exported before, with its tokenizer.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from export_gguf import export
from generate import conversations
from load_gguf import load_tokenizer_of, load_weights
from model import Config, Qwen
from muon import Muon
from tokenizer import encode_conversation, load_tokenizer, train_tokenizer

TRAIN_SEED, HELD_OUT_SEED = 1, 2
HELD_OUT_CONVERSATIONS = 600
TOKENIZER_CONVERSATIONS = 20_000
PROMPT_WEIGHT = 0.1  # of the loss on what the user types: a little, so that its words get a meaning
MTP_DEPTH, MTP_WEIGHT = 2, 0.5  # tokens that the block predicts, and their part of the loss
SHORT_CONTEXT = 512  # for the first part of the steps, where attention then costs a quarter


def pack(tokenizer, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """All conversations one after the other: ids u16 and loss weights f32."""
    # One start mark is the rule; none or two happen when an engine and a template disagree.
    rng = random.Random(seed)
    ids: list[int] = []
    weights: list[float] = []
    for messages in conversations(seed, count):
        bos_count = rng.choices([1, 0, 2], weights=[80, 10, 10])[0]
        tokens, written = encode_conversation(tokenizer, messages, bos_count)
        ids += tokens
        weights += [1.0 if w else PROMPT_WEIGHT for w in written]
    return np.array(ids, dtype=np.uint16), np.array(weights, dtype=np.float32)


def windows(ids: np.ndarray, weights: np.ndarray, context: int) -> tuple[torch.Tensor, torch.Tensor,
    torch.Tensor]:
    """inputs, targets and weights, each [windows, context]"""
    count = (len(ids) - 1) // context
    stop = count * context

    def shape(x: np.ndarray, start: int) -> torch.Tensor:
        return torch.from_numpy(x[start:start + stop].copy()).view(count, context)

    return shape(ids.astype(np.int64), 0), shape(ids.astype(np.int64), 1), shape(weights, 1)


def loss_of(model: Qwen, inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor,
    depth: int = 0) -> list[torch.Tensor]:
    """The losses of the next token, and of `depth` tokens after it by the MTP block."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = model.states(inputs)
        all_logits = [model.logits(states), *model.guesses(inputs, states, depth)]
    losses = []
    for skipped, logits in enumerate(all_logits):
        due, weight = targets[:, skipped:].flatten(), weights[:, skipped:].flatten()
        loss = F.cross_entropy(logits.float().flatten(0, 1), due, reduction="none")
        losses.append((loss * weight).sum() / weight.sum())
    return losses


@torch.no_grad()
def held_out_loss(model: Qwen, data: tuple[torch.Tensor, ...]) -> list[float]:
    """Nats per token that the assistant writes: the next one, and those of the MTP block."""
    total, count = torch.zeros(1 + MTP_DEPTH), 0.0
    for start in range(0, len(data[0]), 4):
        inputs, targets, weights = (x[start:start + 4] for x in data)
        only_assistant = (weights == 1.0).float()
        losses = loss_of(model, inputs, targets, only_assistant, MTP_DEPTH)
        total += torch.stack(losses) * only_assistant.sum()
        count += only_assistant.sum().item()
    return (total / count).tolist()


def schedule(step: int, steps: int, warm_up: int, decay_share: float) -> float:
    """Warm up, stay, then fall in a line to a twentieth over the last `decay_share` of the steps."""
    if step < warm_up:
        return (step + 1) / warm_up
    return min(1.0, max(0.05, (steps - step) / (decay_share * steps)))


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(TRAIN_SEED)
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer_path = args.work / "tokenizer.json"
    from_gguf = args.start is not None and args.start.suffix == ".gguf"
    if from_gguf:
        tokenizer = load_tokenizer_of(args.start)
    elif tokenizer_path.exists():
        tokenizer = load_tokenizer(tokenizer_path)
    else:
        texts = (text for messages in conversations(TRAIN_SEED, TOKENIZER_CONVERSATIONS) for _,
            text in messages)
        tokenizer = train_tokenizer(texts, tokenizer_path)

    config = Config()
    held_out = windows(*pack(tokenizer, HELD_OUT_SEED, HELD_OUT_CONVERSATIONS), config.context)
    needed = args.steps * args.batch
    # About 150 tokens a conversation; the surplus is not used.
    data = pack(tokenizer, args.data_seed, needed * config.context // 130 + 200)
    inputs, targets, weights = windows(*data, config.context)
    assert len(inputs) >= needed, f"{len(inputs)} windows, {needed} needed"
    print(f"{needed * config.context / 1e6:.1f} M tokens to train on", flush=True)

    model = Qwen(config)
    if args.start:
        model.load_state_dict(load_weights(args.start) if from_gguf else torch.load(args.start))
    print(f"{model.parameter_count():,} parameters", flush=True)
    compiled = torch.compile(model) if args.compile else model
    blocks = [*model.layers.parameters(), *model.mtp.parameters()]
    matrices = [p for p in blocks if p.ndim == 2]
    others = [model.embedding.weight, *(p for p in model.parameters() if p.ndim == 1)]
    optimisers = [Muon(matrices, lr=args.muon_lr, weight_decay=0.05),
                  torch.optim.AdamW(others, lr=args.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]
    base = [group["lr"] for o in optimisers for group in o.param_groups]

    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(TRAIN_SEED))
    began = saved = time.monotonic()
    stop = min(args.steps, args.stop or args.steps)
    for step in range(stop):
        for group, lr in zip((g for o in optimisers for g in o.param_groups), base):
            group["lr"] = lr * schedule(step, args.steps, args.warm_up, args.decay_share)
        rows = order[step * args.batch:(step + 1) * args.batch]
        batch = (inputs[rows], targets[rows], weights[rows])
        if step < args.short_share * args.steps:
            batch = tuple(x.view(-1, SHORT_CONTEXT) for x in batch)
        losses = loss_of(compiled, *batch, MTP_DEPTH)
        (losses[0] + MTP_WEIGHT * sum(losses[1:])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        seconds = time.monotonic() - began
        if step % 20 == 0:
            rate = (step + 1) * args.batch * config.context / seconds
            shown = " ".join(f"{loss.item():.4f}" for loss in losses)
            print(f"step {step:5d}  loss {shown}  {rate:6.0f} tokens/s  {seconds:6.0f} s",
                flush=True)
        last = step + 1 == stop
        if last or time.monotonic() - saved > args.save_every_s:
            saved = time.monotonic()
            torch.save(model.state_dict(), args.work / "model.pt")
            export(model, tokenizer, args.out)
            shown = " ".join(f"{loss:.4f}" for loss in held_out_loss(model, held_out))
            print(f"step {step:5d}  held-out loss {shown}  exported", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("sinew-demo.gguf"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/sinew-demo"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--stop", type=int, help="stop at this step of the schedule")
    parser.add_argument("--batch", type=int, default=4, help="windows of 2,048 tokens a step")
    parser.add_argument("--short-share", type=float, default=0.7,
        help="of the steps, with windows of 512 tokens")
    parser.add_argument("--warm-up", type=int, default=40, help="steps")
    parser.add_argument("--decay-share", type=float, default=0.5,
        help="of the steps, in which the rate falls")
    parser.add_argument("--compile", action="store_true",
        help="by torch.compile: worth its minutes for long runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=0.004)
    parser.add_argument("--data-seed", type=int, default=TRAIN_SEED)
    parser.add_argument("--start", type=Path, help="weights to start from, instead of random ones")
    parser.add_argument("--save-every-s", type=float, default=240.0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
