#!/usr/bin/env python3
"""What a mixture costs whose experts lie on disk, in half of the memory that its file takes.

Measures, in one run: the model in memory as a whole; the same in a memory cgroup (version 1) of half of
the file, with experts read from disk; llama.cpp, which maps the file, in the same cgroup; the disk with
O_DIRECT, 16 reads at once. Prints what is due: the rate in memory, or the disk's rate by the bytes that
a token misses, whichever is lower. With --nodes also two nodes with a quarter each beside one with a
half, and the like, each with a disk of 200 MB/s by the limiter inside the pool.

    sinew dev synth --shape qwen3-moe-many --quant q4_k_m --skew 1 -o moe.gguf
    python3 -m pip install xllamacpp
    sudo python3 benches/experts.py -m moe.gguf --dir FOLDER
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

from prompts_on_disk import plain_rate

CGROUP = "/sys/fs/cgroup/memory/sinew-experts"
# What a process takes beside weights: code, stacks, buffers and a small cache.
PROCESS_BYTES = 150 << 20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("-r", "--runs", type=int, default=3)
    parser.add_argument("--sinew", default="target/release/sinew")
    parser.add_argument("--dir", help="a folder on the disk to be measured")
    parser.add_argument("--nodes", action="store_true", help="two nodes beside one, too")
    parser.add_argument("--rival", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rival:
        return rival(args)
    folder = tempfile.mkdtemp(dir=args.dir)
    try:
        measure(args, folder)
        if args.nodes:
            nodes(args, folder)
    finally:
        shutil.rmtree(folder)


def measure(args, folder):
    limit = os.path.getsize(args.model) // 2
    inside = lambda: enter(limit)
    prompt, answer = sinew(args, [])
    print(f"in memory: prompt {prompt['avg_ts']:.1f}, answer {answer['avg_ts']:.2f} tokens/s")
    slabs = os.path.join(folder, "slabs")
    # Writes the slabs, outside of the cgroup.
    sinew(args, ["--expert-memory", "1GiB", "--expert-folder", slabs], tokens=1, runs=1)
    experts = sum(os.path.getsize(path) for path in files(slabs))
    budget = limit - (os.path.getsize(args.model) - experts) - PROCESS_BYTES
    disk = plain_rate(os.path.join(slabs, "0"))
    print(f"cgroup of {limit / 1e9:.2f} GB, {budget / 1e9:.2f} of {experts / 1e9:.2f} GB of experts in")
    print(f"memory; the disk reads {disk / 1e6:.0f} MB/s with O_DIRECT")
    options = ["--expert-memory", str(budget), "--expert-folder", slabs]
    ours = sinew(args, options, inside)
    peak = int(open(f"{CGROUP}/memory.max_usage_in_bytes").read())
    for test, found, resident in zip(("prompt", "answer"), ours, (prompt, answer)):
        show(args, test, found, resident, disk)
    held = ours[1]["experts"]["memory_bytes"]
    print(f"experts in memory: {held / budget:.3f} of their budget; the cgroup's peak {peak / limit:.3f}")
    command = [sys.executable, __file__, "-m", args.model, "--rival", "-t", args.threads]
    theirs = json.loads(child([*command, "-p", args.prompt, "-n", args.tokens], inside))
    for test, rate, found in zip(("prompt", "answer"), theirs, ours):
        ratio = found["avg_ts"] / rate
        print(f"{test}: llama.cpp mapping the file {rate:.2f} tokens/s; Sinew is {ratio:.1f} times as fast")


def show(args, test, found, resident, disk):
    counts, rate = found["experts"], found["avg_ts"]
    each = args.prompt if test == "prompt" else args.tokens
    missed = counts["read_bytes"] / (args.runs * each)
    due = min(resident["avg_ts"], disk / max(missed, 1))
    hits = counts["hits"] / (counts["hits"] + counts["misses"])
    print(f"{test}: {rate:.2f} tokens/s, {rate / due:.2f} of the {due:.2f} that are due; {hits:.1%} hits,")
    print(f"  {missed / 1e6:.1f} MB missed a token, {counts['wait_part']:.0%} of the time waits for the disk")


def nodes(args, folder):
    """Two nodes, each with a disk of 200 MB/s, beside one: with the same memory together, and with the
    same memory each."""
    experts = sum(os.path.getsize(path) for path in files(os.path.join(folder, "slabs")))
    for parts, name in ((2, 4), "half of the experts beside two with a quarter each"), ((3, 3), "third beside two with a third each"):
        rates = []
        for count, part in zip((1, 2), parts):
            slabs = os.path.join(folder, f"of-{count}")
            options = ["--local-nodes", str(count), "--expert-memory", str(experts // part)]
            if count > 1:
                options += ["--strategy", "tensor"]
            options += ["--expert-folder", slabs, "--disk-limit", "200"]
            found = sinew(args, options, threads=1)[1]
            rates.append(found["avg_ts"])
            counts = found["experts"]
            hits = counts["hits"] / (counts["hits"] + counts["misses"])
            print(f"{count} of 200 MB/s: {rates[-1]:.2f} tokens/s, {hits:.1%} hits")
        print(f"one node with a {name}: {rates[1] / rates[0]:.2f} times as fast (limited by the pool)")


def sinew(args, options, enters=None, tokens=None, runs=None, threads=None):
    command = [args.sinew, "bench", "model", "-m", args.model, "-t", threads or args.threads, "-o", "json"]
    command += ["-p", tokens or args.prompt, "-n", tokens or args.tokens, "-r", runs or args.runs]
    return json.loads(child(command + options, enters))


def child(command, enters=None):
    done = subprocess.run([str(part) for part in command], preexec_fn=enters, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout[done.stdout.index("["):]


def enter(limit):
    os.makedirs(CGROUP, exist_ok=True)
    for name, text in [("limit_in_bytes", limit), ("max_usage_in_bytes", 0)]:
        with open(f"{CGROUP}/memory.{name}", "w") as file:
            file.write(str(text))
    with open(f"{CGROUP}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def files(folder):
    return [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names]


def rival(args):
    """Rates of llama.cpp in this process, in tokens per second: of a prompt, and of an answer."""
    import xllamacpp as api

    with open(args.model, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    params = api.CommonParams()
    params.model.path = args.model
    params.n_ctx = 2 * (args.prompt + args.tokens) + 64
    params.n_parallel = 1
    params.warmup = False
    params.load_mode = api.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    # Repacked weights would be a copy in memory, for which the cgroup has no room.
    params.no_extra_bufts = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    server = api.Server(params)
    rates = []
    for run in range(2):
        prompt = [(run * args.prompt + at) * 2654435761 % 30000 for at in range(args.prompt)]
        asked = {"prompt": prompt, "n_predict": args.tokens, "ignore_eos": True, "cache_prompt": False}
        found = server.handle_completions(asked)
        found = found if isinstance(found, dict) else json.loads(found)
        times = found["timings"]
        rates = [times["prompt_per_second"], times["predicted_per_second"]]
    print(json.dumps(rates), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
