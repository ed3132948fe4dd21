"""Writes the trained model as one GGUF file: matrices Q8_0, norms F32, tokenizer and template."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import quantize
from tokenizers import Tokenizer

from model import Qwen
from tokenizer import BOS, CHAT_TEMPLATE, END, SPECIALS

_DESCRIPTION = ("A tiny language model, trained from nothing on generated text, that answers about "
                "Sinew and about an invented harbour town. It exists so that Sinew can be tried "
                "without a download.")

# PyTorch name within a layer -> GGUF name within a block.
_LAYER_NAMES = {
    "attention_norm.weight": "attn_norm.weight",
    "attention.q.weight": "attn_q.weight",
    "attention.k.weight": "attn_k.weight",
    "attention.v.weight": "attn_v.weight",
    "attention.output.weight": "attn_output.weight",
    "attention.q_norm.weight": "attn_q_norm.weight",
    "attention.k_norm.weight": "attn_k_norm.weight",
    "ffn_norm.weight": "post_attention_norm.weight",
    "ffn.gate.weight": "ffn_gate.weight",
    "ffn.up.weight": "ffn_up.weight",
    "ffn.down.weight": "ffn_down.weight",
}

# The same of the MTP block, besides its layer.
_MTP_NAMES = {
    "token_norm.weight": "enorm.weight",
    "state_norm.weight": "hnorm.weight",
    "entry.weight": "eh_proj.weight",
    "norm.weight": "shared_head_norm.weight",
}


def gguf_name(name: str, layers: int) -> str:
    if name == "embedding.weight":
        return "token_embd.weight"  # also the output head: without output.weight, engines tie it
    if name == "norm.weight":
        return "output_norm.weight"
    if name.startswith("mtp.layer."):  # the block comes behind the layers
        return f"blk.{layers}.{_LAYER_NAMES[name.removeprefix('mtp.layer.')]}"
    if name.startswith("mtp."):
        return f"blk.{layers}.nextn.{_MTP_NAMES[name.removeprefix('mtp.')]}"
    _, index, rest = name.split(".", 2)
    return f"blk.{index}.{_LAYER_NAMES[rest]}"


def _write_metadata(writer: GGUFWriter, model: Qwen) -> None:
    c = model.config
    writer.add_name("Sinew Demo")
    writer.add_description(_DESCRIPTION)
    writer.add_license("apache-2.0")
    writer.add_languages(["en"])
    writer.add_size_label(f"{model.parameter_count() / 1e6:.1f}M")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    writer.add_vocab_size(c.vocab)
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers + 1)
    writer.add_nextn_predict_layers(1)
    writer.add_feed_forward_length(c.ffn)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    # Text has one position: all sections of a head rotate by it.
    writer.add_rope_dimension_sections([c.head_dim // 2, 0, 0, 0])
    # Every layer attends.  The sizes of layers with a state are required, and mean nothing here.
    writer.add_uint32(f"{writer.arch}.full_attention_interval", 1)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(c.head_dim)
    writer.add_ssm_group_count(c.kv_heads)
    writer.add_ssm_time_step_rank(c.heads)
    writer.add_ssm_inner_size(c.width)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.norm_eps)


def _write_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    bpe = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    merges = [m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]]
    kinds = [TokenType.CONTROL if token in SPECIALS else TokenType.NORMAL for token in by_id]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(by_id)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(END)
    writer.add_eot_token_id(END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def export(model: Qwen, tokenizer: Tokenizer, path: Path) -> None:
    """Replaces `path` in one step, so that a reader never sees half a file."""
    partial = path.with_suffix(".partial")
    writer = GGUFWriter(partial, "qwen35")
    _write_metadata(writer, model)
    _write_tokenizer(writer, tokenizer)
    layers = model.config.layers
    for name, tensor in model.state_dict().items():
        values = tensor.detach().to(torch.float32).numpy().astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name, layers), values)
        else:
            q8 = quantize(values, GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name, layers), q8, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)
