#!/usr/bin/env python3
"""Sinew beside llama.cpp: the same GGUF, the same machine, the same run.

Each round runs every test once on either side, alternately, so that a machine that slows down
slows both. Both get the same CPUs. llama.cpp runs through the C API of llama-cpp-python with both of
its attention modes, and the better median of the two counts. Prints a markdown table of medians, and
keeps all single runs in a file.

    python3 -m pip install llama-cpp-python
    python3 benches/compare_llama_cpp.py -m model.gguf -t 1,2 -p 512 -n 32 -d 0,4096

What is timed is the same on both sides: `llama_decode` (or its twin) over token ids, prompt in steps of
512, one token at a time for generation; no tokenizer, no sampling, no loading.
"""

import argparse
import json
import statistics
import sys
import time

import harness
from harness import child, first_cpus

STEP = 512


def numbers(text):
    return [int(part) for part in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", required=True, help="a .gguf; repeatable")
    parser.add_argument("-t", "--threads", type=numbers, default=[1], help="such as 1,2")
    parser.add_argument("-p", "--n-prompt", type=int, default=512, help="0 leaves prefill out")
    parser.add_argument("-n", "--n-gen", type=int, default=32, help="0 leaves decode out")
    parser.add_argument("-d", "--n-depth", type=numbers, default=[0], help="such as 0,4096")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="medians are of this many")
    parser.add_argument("--runs", type=int, default=1, help="runs within a process, as one sample")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    parser.add_argument("--read", metavar="BENCH", help="the kernels' example bench, for decode")
    parser.add_argument("--token-bytes", type=int, help="what a token reads, if not all weights")
    harness.add_out(parser)
    # One test of llama.cpp in a process of its own; what the script calls itself with.
    parser.add_argument("--rival", choices=["on", "off"], help=argparse.SUPPRESS)
    return parser.parse_args()


def sinew(args, model, threads, prompt, generate, depth):
    """Tokens per second of one test, after a run that does not count."""
    options = ["-m", model, "-t", threads, "-p", prompt, "-n", generate, "-d", depth]
    return harness.sinew(args.sinew, first_cpus(threads), [*options, "-r", args.runs])


def llama_cpp(args, model, threads, prompt, generate, depth, attention):
    command = [sys.executable, __file__, "-m", model, "-t", threads, "-p", prompt]
    command += ["-n", generate, "-d", depth, "--runs", args.runs, "--rival", attention]
    return child(command, first_cpus(threads))


def rival(args):
    """One test of llama.cpp in this process; prints tokens per second."""
    import llama_cpp as api

    threads, depth = args.threads[0], args.n_depth[0]
    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, None)
    api.llama_backend_init()
    options = api.llama_model_default_params()
    options.n_gpu_layers = 0
    model = api.llama_model_load_from_file(args.model[0].encode(), options)
    if not model:
        sys.exit(f"llama.cpp cannot load {args.model[0]}")
    options = api.llama_context_default_params()
    options.n_ctx = depth + max(args.n_prompt, args.n_gen) + 8
    options.n_batch = options.n_ubatch = STEP
    options.n_threads = options.n_threads_batch = threads
    options.flash_attn_type = 1 if args.rival == "on" else 0
    context = api.llama_init_from_model(model, options)
    if not context:
        sys.exit(f"llama.cpp cannot make a context of {options.n_ctx} tokens")
    memory = api.llama_get_memory(context)
    vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))

    def decode(tokens):
        for at in range(0, len(tokens), STEP):
            part = tokens[at : at + STEP]
            array = (api.llama_token * len(part))(*part)
            if api.llama_decode(context, api.llama_batch_get_one(array, len(part))) != 0:
                sys.exit("llama_decode failed")
        api.llama_synchronize(context)

    def tokens(count):
        return [at * 2654435761 % vocab for at in range(count)]

    api.llama_memory_clear(memory, True)
    if depth:
        decode(tokens(depth))
    rates = []
    for _ in range(1 + args.runs):  # The first does not count.
        api.llama_memory_seq_rm(memory, 0, depth, -1)
        started = time.perf_counter()
        if args.n_prompt:
            decode(tokens(args.n_prompt))
        for token in tokens(args.n_gen):
            decode([token])
        rates.append((args.n_prompt or args.n_gen) / (time.perf_counter() - started))
    print(json.dumps(statistics.median(rates[1:])))


def measure(args, model, threads, prompt, generate, depth):
    """Tokens per second of each side, round by round, and bytes per second of plain reads."""
    ours, theirs, reads = [], {"on": [], "off": []}, []
    for _ in range(args.rounds):
        if args.read and generate:
            reads.append(harness.read_rate(args.read, first_cpus(threads), threads))
        ours.append(sinew(args, model, threads, prompt, generate, depth))
        for attention, rates in theirs.items():
            rates.append(llama_cpp(args, model, threads, prompt, generate, depth, attention))
    rivals = {f"llama.cpp, flash {mode}": rates for mode, rates in theirs.items()}
    return {"Sinew": ours, **rivals}, reads


def tests(args):
    """Tokens of prompt and of generation, and depth, of each test."""
    for depth in args.n_depth:
        for prompt, generate in [(args.n_prompt, 0), (0, args.n_gen)]:
            if prompt + generate > 0:
                yield prompt, generate, depth


def main():
    args = arguments()
    if args.rival:
        return rival(args)
    try:
        import llama_cpp
    except ImportError:
        sys.exit("the rival is missing. Try: python3 -m pip install llama-cpp-python")
    harness.require_sinew(args.sinew)
    version = f"llama-cpp-python {llama_cpp.__version__}"
    results = harness.Results(args.out, harness.sinew_version(args.sinew), version)
    for model in args.model:
        token_bytes = args.token_bytes or (args.read and harness.weight_bytes(args.sinew, model))
        for threads in args.threads:
            for prompt, generate, depth in tests(args):
                name = f"pp{prompt}" if prompt else f"tg{generate}"
                name += f" @ d{depth}" if depth else ""
                samples, reads = measure(args, model, threads, prompt, generate, depth)
                results.add(model, name, threads, samples, reads, token_bytes)


if __name__ == "__main__":
    main()
