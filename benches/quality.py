#!/usr/bin/env python3
"""How far Sinew and llama.cpp are from exact arithmetic, on the same file and the same text.

The base is the file with every tensor dequantised to f32, run by llama.cpp in f32 with a cache in
f32: Sinew has no part in it. Beside it run llama.cpp on the file itself, and `sinew bench quality`.
Prints a markdown table for docs/exactness.md. Divergences are in nats.

    python3 -m pip install llama-cpp-python gguf
    python3 benches/quality.py -m model.gguf --chunks 12

The dequantised file lies in --folder while the base is made (4 bytes a weight); the base stays there
and is used again: 2.5 KiB for each token that is scored.
"""

import argparse
import math
import os
import sys

import gguf
import llama_cpp as api
import numpy as np

import harness

MAGIC = b"SinewKL1"
SAMPLED = 64  # tokens of a position that stand for all those outside its likeliest
HEAD = """\
| model | who | cache | perplexity | KL mean | 99 % | maximum | same top, % |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"""


def arguments():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", required=True, help="a .gguf; repeatable")
    parser.add_argument("-f", "--file", default=os.path.join(here, "quality.txt"), help="the text")
    parser.add_argument("-c", "--ctx", type=int, default=512, help="tokens of a chunk")
    parser.add_argument("--chunks", type=int, default=12, help="how many of the text's first")
    parser.add_argument("--top", type=int, default=256, help="probabilities a position in the base")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--folder", default=harness.RESULTS, help="where bases lie")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    return parser.parse_args()


def dequantise(source, target):
    """Writes the same model with all tensors in f32, one tensor at a time."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    ours = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if not name.startswith(ours):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * math.prod(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.close()


class Llama:
    """A model in llama.cpp, with a cache of the given type; attention as it chooses by itself."""

    def __init__(self, args, path, cache, attention):
        options = api.llama_model_default_params()
        options.n_gpu_layers = 0
        self.model = api.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        options = api.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = args.ctx
        options.n_threads = options.n_threads_batch = args.threads
        options.type_k = options.type_v = cache
        options.flash_attn_type = attention
        self.context = api.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit(f"llama.cpp cannot make a context of {args.ctx} tokens")
        self.vocab = api.llama_model_get_vocab(self.model)
        self.vocab_size = api.llama_vocab_n_tokens(self.vocab)

    def chunks(self, args):
        """The text's tokens in chunks, each with the token first that begins every text."""
        text = open(args.file, "rb").read()
        room = (api.llama_token * (len(text) + 16))()
        found = api.llama_tokenize(self.vocab, text, len(text), room, len(room), True, False)
        count = min(found // args.ctx, args.chunks)
        chunks = np.array(room[: count * args.ctx], "<u4").reshape(count, args.ctx)
        if api.llama_vocab_get_add_bos(self.vocab):
            chunks[:, 0] = api.llama_vocab_bos(self.vocab)
        return chunks

    def logits(self, chunk):
        """Of each position that is scored, `[vocab]`."""
        first, count = len(chunk) // 2, len(chunk) - 1
        batch = api.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for at in range(count):
            batch.token[at], batch.pos[at] = int(chunk[at]), at
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, 0
            batch.logits[at] = at >= first
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        if api.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        for at in range(first, count):
            row = api.llama_get_logits_ith(self.context, at)
            yield np.ctypeslib.as_array(row, (self.vocab_size,)).astype(np.float64)
        api.llama_batch_free(batch)

    def close(self):
        api.llama_free(self.context)
        api.llama_model_free(self.model)


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def chunk_type(context, top):
    """A chunk of a base: crates/bench/src/quality/base.rs describes the file."""
    pair = [("token", "<u4"), ("ln", "<f4")]
    position = [("next", "<f4"), ("rest", "<f4"), ("top", pair, top), ("sampled", pair, SAMPLED)]
    scored = context - context // 2 - 1
    return np.dtype([("chunk", "<u4", context), ("positions", position, scored)])


def rest_of(ln, top):
    """Probabilities without those of the tokens in `top`, and the logarithm of their sum."""
    rest = np.exp(ln)
    rest[top] = 0.0
    total = rest.sum()
    return rest, math.log(total) if total > 0 else -math.inf


def divergence(place, ln):
    """From the base's position to these log-probabilities: of its likeliest tokens, of the sum of all
    others, and an estimate of that among these others, as crates/bench/src/quality/scores.rs."""
    top, sampled = place["top"], place["sampled"]
    ln_base = top["ln"].astype(np.float64)
    found = (np.exp(ln_base) * (ln_base - ln[top["token"]])).sum()
    rest = float(place["rest"])
    if rest > -math.inf:
        own = rest_of(ln, top["token"])[1]
        ratio = (ln[sampled["token"]] - own) - (sampled["ln"].astype(np.float64) - rest)
        found += math.exp(rest) * (rest - own + np.mean(np.expm1(ratio) - ratio))
    return max(found, 0.0)


def make_base(args, model, path):
    """Runs the dequantised model over the text."""
    plain = os.path.join(args.folder, "dequantised.gguf")
    dequantise(model, plain)
    llama = Llama(args, plain, api.GGML_TYPE_F32, api.LLAMA_FLASH_ATTN_TYPE_DISABLED)
    chunks = llama.chunks(args)
    top = min(args.top, llama.vocab_size)
    with open(path + ".part", "wb") as out:
        out.write(MAGIC)
        np.array([llama.vocab_size, args.ctx, top, len(chunks)], "<u4").tofile(out)
        for chunk in chunks:
            record = np.zeros(1, chunk_type(args.ctx, top))
            record["chunk"] = chunk
            following = chunk[args.ctx // 2 + 1 :]
            for place, token, logits in zip(record["positions"][0], following, llama.logits(chunk)):
                ln = log_softmax(logits)
                likely = np.argpartition(-ln, top - 1)[:top]
                likely = likely[np.lexsort((likely, -ln[likely]))]
                others, rest = rest_of(ln, likely)
                place["next"], place["rest"] = ln[token], rest
                place["top"]["token"], place["top"]["ln"] = likely, ln[likely]
                sums = np.cumsum(others)
                points = (np.arange(SAMPLED) + 0.5) / SAMPLED * sums[-1]
                sampled = np.searchsorted(sums, points, side="right")
                if rest == -math.inf:
                    place["sampled"]["ln"] = -math.inf
                else:
                    place["sampled"]["token"], place["sampled"]["ln"] = sampled, ln[sampled]
            record.tofile(out)
    llama.close()
    os.remove(plain)
    os.rename(path + ".part", path)


def read_base(path):
    _, context, top, _ = np.fromfile(path, "<u4", 4, offset=len(MAGIC))
    return np.memmap(path, chunk_type(int(context), int(top)), "r", offset=len(MAGIC) + 16)


def estimate(values):
    """Mean and standard error."""
    return {"value": np.mean(values), "error": np.std(values, ddof=1) / math.sqrt(len(values))}


def perplexity(surprises):
    mean = estimate(surprises)
    value = math.exp(mean["value"])
    return {"value": value, "error": value * mean["error"]}


def llama_cpp(args, model, base, cache):
    """llama.cpp on the file itself beside the base, under the keys of `sinew bench quality`."""
    llama = Llama(args, model, cache, api.LLAMA_FLASH_ATTN_TYPE_AUTO)
    surprises, divergences, same = [], [], []
    for record in base:
        following = record["chunk"][args.ctx // 2 + 1 :]
        for place, token, logits in zip(record["positions"], following, llama.logits(record["chunk"])):
            ln = log_softmax(logits)
            surprises.append(-ln[token])
            divergences.append(divergence(place, ln))
            same.append(float(place["top"]["token"][0] == ln.argmax()))
    llama.close()
    comparison = {"kl_mean": estimate(divergences), "kl_99": np.percentile(divergences, 99)}
    comparison.update(kl_max=max(divergences), same_top=estimate(same))
    return {"perplexity": perplexity(surprises), "comparison": comparison}


def sinew(args, model, base, options):
    command = [args.sinew, "bench", "quality", "-m", model, "-f", args.file, "-c", args.ctx]
    command += ["--base", base, "--chunks", args.chunks, *options, "-o", "json"]
    return harness.child(command, harness.first_cpus(args.threads))


def line(model, who, cache, row):
    def number(estimate, digits, scale=1):
        return f"{estimate['value'] * scale:.{digits}f} ± {estimate['error'] * scale:.{digits}f}"

    cells = ["", "", "", ""]
    if comparison := row.get("comparison"):
        cells = [number(comparison["kl_mean"], 5)]
        cells += [f"{comparison[key]:.4f}" for key in ("kl_99", "kl_max")]
        cells += [number(comparison["same_top"], 2, 100)]
    cells = [model, who, cache, number(row["perplexity"], 3), *cells]
    print(f"| {' | '.join(cells)} |", flush=True)


def measure(args, model):
    name = os.path.basename(model).removesuffix(".gguf")
    path = os.path.join(args.folder, f"{name}-{args.ctx}-{args.chunks}-{args.top}.base")
    if not os.path.exists(path):
        make_base(args, model, path)
    base = read_base(path)
    exact = perplexity(-base["positions"]["next"].ravel().astype(np.float64))
    line(name, "llama.cpp, dequantised", "f32", {"perplexity": exact})
    for cache, number in (("f16", api.GGML_TYPE_F16), ("q8_0", api.GGML_TYPE_Q8_0)):
        line(name, "llama.cpp", cache, llama_cpp(args, model, base, number))
    threads = ["-t", args.threads]
    two = ["--local-nodes", 2, "--strategy", "tensor", "--wire-type", "q8"]
    runs = [("Sinew", [*threads]), ("Sinew", [*threads, "--cache-type", "f16"])]
    runs += [("Sinew", [*threads, "--cache-type", "q8_0"]), ("Sinew, two nodes, q8 wire", two)]
    for who, options in runs:
        row = sinew(args, model, path, options)
        line(name, who, row["type_k"], row)


def main():
    args = arguments()
    harness.require_sinew(args.sinew)
    os.makedirs(args.folder, exist_ok=True)
    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, None)
    api.llama_backend_init()
    about = f"llama-cpp-python {api.__version__}; {harness.machine()}"
    print(f"{harness.sinew_version(args.sinew)}; {about}; {args.chunks} chunks of {args.ctx}\n")
    print(HEAD, flush=True)
    for model in args.model:
        measure(args, model)


if __name__ == "__main__":
    main()
