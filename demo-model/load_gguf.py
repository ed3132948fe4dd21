"""Reads back what `export_gguf.py` wrote, so that training can go on from a published file."""

from __future__ import annotations

from pathlib import Path

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from export_gguf import gguf_name
from model import Config, Qwen
from tokenizer import SPECIALS


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The state of a `Qwen`, f32: what was Q8_0 keeps the error of that."""
    tensors = {t.name: t for t in GGUFReader(path).tensors}
    state = {}
    for name, like in Qwen(Config()).state_dict().items():
        tensor = tensors[gguf_name(name, Config().layers)]
        values = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        state[name] = values.float().view(like.shape)
    return state


def load_tokenizer_of(path: Path) -> Tokenizer:
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return tokenizer
