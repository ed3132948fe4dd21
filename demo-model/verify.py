"""Checks an exported GGUF against two independent programs.

    python verify.py sinew-demo.gguf

1. The chat template renders alike under jinja2 and minijinja, and gives the tokens of the training.
2. The logits of transformers agree with our PyTorch forward pass over the file's own weights.

Needs transformers, jinja2 and minijinja beside the requirements of the training.  llama.cpp cannot
be asked: it wants a layer with a state in every model of this architecture.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2
import minijinja
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from generate import Message, conversations
from load_gguf import load_tokenizer_of, load_weights
from model import Config, Qwen
from tokenizer import SPECIALS, encode_conversation

# Names in transformers, by ours.
_PARTS = {
    "embedding": "model.embed_tokens", "norm": "model.norm",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj", "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
    "ffn.gate": "mlp.gate_proj", "ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj",
}


def reference(weights: dict[str, torch.Tensor]) -> Qwen3_5ForCausalLM:
    """The model in transformers, without its MTP block."""
    c = Config()
    rotation = dict(rope_type="default", rope_theta=c.rope_base, partial_rotary_factor=1.0)
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(
        vocab_size=c.vocab, hidden_size=c.width, intermediate_size=c.ffn,
        num_hidden_layers=c.layers, layer_types=["full_attention"] * c.layers,
        num_attention_heads=c.heads, num_key_value_heads=c.kv_heads, head_dim=c.head_dim,
        rms_norm_eps=c.norm_eps, tie_word_embeddings=True, max_position_embeddings=c.context,
        rope_parameters=rotation, attn_implementation="eager"))
    state = {}
    for name, values in weights.items():
        if name.startswith("mtp."):
            continue
        *place, part = name.removesuffix(".weight").split(".", 2)
        place, part = (name.split(".")[:2], part) if place[:1] == ["layers"] else ([], name[:-7])
        there = ".".join(["model", *place, _PARTS[part]] if place else [_PARTS[part]])
        # Its norms keep what is above 1.
        state[f"{there}.weight"] = values - 1.0 if "norm" in part else values
    state["lm_head.weight"] = weights["embedding.weight"]
    model.load_state_dict(state)
    return model.float().eval()


def check_template(template: str, messages: list[Message], tokenizer: Tokenizer) -> None:
    values = {"messages": [{"role": r, "content": c} for r, c in messages],
        "bos_token": SPECIALS[0],
              "add_generation_prompt": False}
    text = jinja2.Template(template).render(**values)
    assert text == minijinja.Environment().render_str(template, **values)
    assert tokenizer.encode(text).ids == encode_conversation(tokenizer, messages)[0], text


def main() -> None:
    path = Path(sys.argv[1])
    weights, tokenizer = load_weights(path), load_tokenizer_of(path)
    model, engine = Qwen(Config()), reference(weights)
    model.load_state_dict(weights)
    template = GGUFReader(path).fields["tokenizer.chat_template"].contents()
    samples = list(conversations(seed=99, count=200))
    for messages in samples:
        check_template(template, messages, tokenizer)
    print(f"template: {len(samples)} conversations agree")

    worst, same, total = 0.0, 0, 0
    for messages in samples[:20]:
        ids = torch.tensor([encode_conversation(tokenizer, messages)[0][:2048]])
        with torch.no_grad():
            ours, theirs = model(ids)[0], engine(ids).logits[0]
        worst = max(worst, float((ours - theirs).abs().max() / ours.abs().max()))
        same += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        total += ids.shape[1]
    print(f"logits: {same} of {total} positions pick the same token; "
          f"largest difference {worst:.1e} of the largest logit")
    assert same == total and worst < 1e-4


if __name__ == "__main__":
    main()
