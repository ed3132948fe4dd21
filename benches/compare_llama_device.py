#!/usr/bin/env python3
"""Sinew beside llama.cpp on one device: the same GGUF, and the very same files of ggml.

Each round runs every test once on either side, alternately. llama.cpp is the one that node-llama-cpp
builds, whose libraries of ggml Sinew opens too; it is called through its C API with both of its
attention modes, and the better median of the two counts. Prints a markdown table of medians, and keeps
all single runs in a file.

    python3 benches/compare_llama_device.py -m model.gguf --kind cuda --device CUDA0
    python3 benches/compare_llama_device.py -m model.gguf --kind cpu --device CPU -t 2

What is timed is the same on both sides: `llama_decode` (or its twin) over token ids, prompts in steps of
512, one token at a time for generation, logits of the last one read; no tokenizer, no sampling, no
loading. Each side warms up with one run of the test.

The libraries come from npm's registry (needs npm) into benches/results/rival, or lie in --libraries DIR.
"""

import argparse
import ctypes
import glob
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time

import harness
from harness import child, first_cpus

VERSION = "3.22.1"
STEP = 512
# Of `llama_model_params` and `llama_context_params` in that version: number of the 32-bit word.
GPU_LAYERS, EXTRA_BUFFERS = 4, 18
N_CTX, N_BATCH, N_UBATCH, THREADS, FLASH, THEIR_DEFAULTS = 0, 1, 2, (7, 8), 13, (512, 2048, 512)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", action="append", required=True, help="a .gguf; repeatable")
    parser.add_argument("--kind", choices=["cpu", "vulkan", "cuda"], default="vulkan")
    parser.add_argument("--libraries", metavar="DIR", help="where the unpacked libraries lie")
    parser.add_argument("--device", required=True, help="as `sinew doctor gpu` names it; CPU: ggml's")
    parser.add_argument("-t", "--threads", type=int, default=1, help="for a device that has need of them")
    parser.add_argument("-p", "--n-prompt", type=int, default=512, help="0 leaves prefill out")
    parser.add_argument("-n", "--n-gen", type=int, default=128, help="0 leaves decode out")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="medians are of this many")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    harness.add_out(parser)
    # One test of llama.cpp in a process of its own; what the script calls itself with.
    parser.add_argument("--rival", choices=["on", "off"], help=argparse.SUPPRESS)
    return parser.parse_args()


def fetch(kind):
    """The folder of node-llama-cpp's libraries, unpacked once."""
    name = "linux-x64" if kind == "cpu" else f"linux-x64-{kind}"
    home = os.path.join(harness.RESULTS, "rival", f"{name}-{VERSION}")
    bins = os.path.join(home, "package", "bins", name)
    if not os.path.isdir(bins):
        harness.require("npm", "npm fetches the rival; or name a folder with --libraries")
        os.makedirs(home, exist_ok=True)
        package = f"@node-llama-cpp/{name}@{VERSION}"
        packed = subprocess.run(["npm", "pack", "--silent", package], cwd=home, check=True, stdout=subprocess.PIPE)
        with tarfile.open(os.path.join(home, packed.stdout.decode().split()[-1])) as archive:
            archive.extractall(home, filter="data")
    return bins


class Params(ctypes.Structure):
    """A structure of llama.cpp's that is handed on by value: longer than any of them."""

    _fields_ = [("words", ctypes.c_int32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("arrays", ctypes.c_void_p * 6)]


def open_llama(args):
    """libllama, with ggml's device libraries loaded; and the device."""
    links = tempfile.mkdtemp()
    for path in glob.glob(os.path.join(args.libraries, "*.so")):
        os.symlink(os.path.abspath(path), os.path.join(links, os.path.basename(path)))
    llama, ggml = (glob.glob(os.path.join(links, f"lib{name}.*v*.so")) for name in ("llama", "ggml"))
    if len(llama) != 1 or len(ggml) != 1:
        sys.exit(f"{args.libraries} has {len(llama)} libllama and {len(ggml)} libggml, not one each")
    ggml, llama = ctypes.CDLL(ggml[0]), ctypes.CDLL(llama[0])
    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    llama.llama_log_set(quiet, None)
    llama.quiet = quiet
    ggml.ggml_backend_load_all_from_path(links.encode())
    ggml.ggml_backend_dev_by_name.restype = ctypes.c_void_p
    device = ggml.ggml_backend_dev_by_name(args.device.encode())
    if not device:
        sys.exit(f"llama.cpp knows no device {args.device} with the libraries in {args.libraries}")
    for name in ("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory"):
        getattr(llama, name).restype = ctypes.c_void_p
    for name in ("llama_model_get_vocab", "llama_get_logits_ith"):
        getattr(llama, name).restype = ctypes.c_void_p
    llama.llama_model_default_params.restype = llama.llama_context_default_params.restype = Params
    llama.llama_batch_get_one.restype = Batch
    return llama, device


def rival(args):
    """One test of llama.cpp in this process; prints tokens per second."""
    llama, device = open_llama(args)
    pointer = ctypes.c_void_p
    options = llama.llama_model_default_params()
    if args.device == "CPU":
        # GPUs have no layouts of their own for weights, and Sinew leaves out the CPU's.
        options.words[GPU_LAYERS] = options.words[EXTRA_BUFFERS] = 0
    else:
        devices = (pointer * 2)(device, None)
        ctypes.memmove(options.words, ctypes.byref(pointer(ctypes.addressof(devices))), 8)
    model = llama.llama_model_load_from_file(args.model[0].encode(), options)
    if not model:
        sys.exit(f"llama.cpp cannot load {args.model[0]}")
    options = llama.llama_context_default_params()
    if tuple(options.words[0:3]) != THEIR_DEFAULTS or options.words[FLASH] != -1:
        sys.exit("this llama.cpp has other parameters than this script knows")
    options.words[N_CTX] = max(args.n_prompt, args.n_gen) + 8
    options.words[N_BATCH] = options.words[N_UBATCH] = STEP
    for word in THREADS:
        options.words[word] = args.threads
    options.words[FLASH] = 1 if args.rival == "on" else 0
    context = llama.llama_init_from_model(pointer(model), options)
    if not context:
        sys.exit("llama.cpp cannot make a context")
    context, memory = pointer(context), pointer(llama.llama_get_memory(pointer(context)))
    vocab = llama.llama_vocab_n_tokens(pointer(llama.llama_model_get_vocab(pointer(model))))

    def decode(tokens):
        for at in range(0, len(tokens), STEP):
            part = tokens[at : at + STEP]
            array = (ctypes.c_int32 * len(part))(*part)
            if llama.llama_decode(context, llama.llama_batch_get_one(array, len(part))) != 0:
                sys.exit("llama_decode failed")
        # Waits, and reads the logits.
        if not llama.llama_get_logits_ith(context, -1):
            sys.exit("llama.cpp gives no logits")

    tokens = [at * 2654435761 % vocab for at in range(args.n_prompt or args.n_gen)]
    rates = []
    for _ in range(2):  # The first does not count.
        llama.llama_memory_clear(memory, True)
        started = time.perf_counter()
        for part in [tokens] if args.n_prompt else [[token] for token in tokens]:
            decode(part)
        rates.append(len(tokens) / (time.perf_counter() - started))
    print(json.dumps(rates[-1]), flush=True)
    # Drivers may end badly; what was measured is told.
    os._exit(0)


def measure(args, model, prompt, generate):
    """Tokens per second of each side, round by round."""
    cpus = first_cpus(args.threads) if args.device == "CPU" else None
    test = ["-m", model, "-t", args.threads, "-p", prompt, "-n", generate]
    name = "ggml-cpu" if args.device == "CPU" else args.device
    device = ["--device", name, "--gpu-libraries", args.libraries]
    command = [sys.executable, __file__, *test, "--libraries", args.libraries, "--device", args.device]
    ours, theirs = [], {"on": [], "off": []}
    for _ in range(args.rounds):
        ours.append(harness.sinew(args.sinew, cpus, [*test, *device, "-r", 1]))
        for attention, rates in theirs.items():
            rates.append(child([*command, "--rival", attention], cpus))
    return {"Sinew": ours, **{f"llama.cpp, flash {mode}": rates for mode, rates in theirs.items()}}


def main():
    args = arguments()
    if args.rival:
        return rival(args)
    harness.require_sinew(args.sinew)
    args.libraries = args.libraries or fetch(args.kind)
    version = f"llama.cpp of node-llama-cpp {VERSION} on {args.device}"
    results = harness.Results(args.out, harness.sinew_version(args.sinew), version)
    for model in args.model:
        for prompt, generate in [(args.n_prompt, 0), (0, args.n_gen)]:
            if prompt + generate > 0:
                name = f"pp{prompt}" if prompt else f"tg{generate}"
                results.add(model, name, args.threads, measure(args, model, prompt, generate))


if __name__ == "__main__":
    main()
