#!/usr/bin/env python3
"""Sinew beside llama.cpp over RPC in one command, from its source to a page of results.

Fetches llama.cpp from PyPI's source archive of llama-cpp-python, builds it once, makes the models,
and measures on the same CPUs, one core and one thread a node: each side on one node, llama.cpp by
layers and by tensors over its RPC servers, Sinew by tensors and as a pipeline. The sides alternate.
Everything stays in benches/results, the page as against_llama_rpc-DATE.md.

    cargo build --release -p sinew && python3 benches/against_llama_rpc.py
"""

import argparse
import contextlib
import datetime
import os
import platform
import signal
import statistics
import subprocess
import sys
import tarfile
import types
import venv

import compare_llama_rpc as rpc
import harness
import performance

RIVAL = os.path.join(harness.RESULTS, "rival")
BUILD = ["ggml-rpc-server", "llama-bench"]
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_RPC=ON"]
OPTIONS += ["-DLLAMA_BUILD_UI=OFF", "-DLLAMA_CURL=OFF"]
MODELS = ["150m-q4_0", "1b-q4_0"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", default="0.3.36", help="of llama-cpp-python on PyPI")
    parser.add_argument("--llama", help="a folder of llama-bench and ggml-rpc-server instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    parser.add_argument("--models", type=rpc.words, default=MODELS, help="of " + ",".join(MODELS))
    parser.add_argument("--nodes", type=int, default=2, help="each has a CPU of its own")
    parser.add_argument("-p", "--n-prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("-n", "--n-gen", type=int, default=32, help="tokens of decode")
    parser.add_argument("-r", "--rounds", type=int, default=5, help="medians are of this many")
    parser.add_argument("--runs", type=int, default=1, help="runs within a process, as one sample")
    parser.add_argument("--sinew", default="target/release/sinew", help="the binary to measure")
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    page = os.path.join(harness.RESULTS, f"against_llama_rpc-{now}.md")
    parser.add_argument("--page", default=page, help="where the page of results goes")
    return parser.parse_args()


def fetch(version):
    """The folder of llama.cpp's source, out of PyPI's archive; pip checks the hash PyPI tells."""
    source = os.path.join(RIVAL, f"llama_cpp_python-{version}", "vendor", "llama.cpp")
    if os.path.isdir(source):
        return source
    os.makedirs(RIVAL, exist_ok=True)
    name = f"llama_cpp_python-{version}.tar.gz"
    pip("download", "--no-deps", "--no-binary", "llama-cpp-python", "-d", RIVAL,
        f"llama-cpp-python=={version}")
    with tarfile.open(os.path.join(RIVAL, name)) as packed:
        packed.extractall(RIVAL, filter="data")
    return source


def pip(*arguments):
    """Runs the pip of a virtual environment of its own."""
    tools = os.path.join(RIVAL, "venv")
    if not os.path.isfile(os.path.join(tools, "bin", "pip")):
        venv.create(tools, with_pip=True)
    subprocess.run([os.path.join(tools, "bin", "pip"), "-q", *arguments], check=True)


def build(source, jobs):
    """Builds its servers and its benchmark, with cmake and ninja in a virtual environment."""
    binaries = os.path.join(source, "build", "bin")
    if all(os.path.isfile(os.path.join(binaries, name)) for name in BUILD):
        return binaries
    tools = os.path.join(RIVAL, "venv")
    if not os.path.isfile(os.path.join(tools, "bin", "cmake")):
        pip("install", "--only-binary", ":all:", "cmake", "ninja")
    path = os.pathsep.join([os.path.join(tools, "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    for step in (["-B", "build", "-G", "Ninja", *OPTIONS],
                 ["--build", "build", f"-j{jobs}", "--target", *BUILD]):
        subprocess.run(["cmake", *step], cwd=source, env=environment, check=True)
    return binaries


def llama_bench(args, model, test, cpus, options, attention="1"):
    """Tokens per second, after a run that does not count; the better of the attention modes."""
    command = [os.path.join(args.llama, "llama-bench"), "-m", model, "-t", 1, *options]
    command += [*test, "-fa", attention, "-r", args.runs, "-o", "json"]
    return max(statistics.median(row["samples_ts"]) for row in harness.child(command, cpus))


def sinew(args, model, test, cpus, options):
    command = ["-m", model, "-t", 1, *options, *test, "-r", args.runs]
    return harness.sinew(args.sinew, cpus, command)


def sides(args, servers, cpus):
    """Each side's name, and how one sample of it is taken."""
    one = cpus and cpus[:1]
    remote = ["-ngl", 99, "--rpc", ",".join(servers)]
    nodes = ["--local-nodes", args.nodes]
    theirs = lambda cpus, options, *attention: (
        lambda model, test: llama_bench(args, model, test, cpus, options, *attention))
    ours = lambda cpus, options: lambda model, test: sinew(args, model, test, cpus, options)
    split = lambda strategy, transport: [*nodes, "--strategy", strategy, "--transport", transport]
    yield "llama.cpp, one node", theirs(one, [], "0,1")
    yield "Sinew, one node", ours(one, [])
    yield "llama.cpp RPC, layers", theirs(cpus, [*remote, "-sm", "layer"], "0,1")
    # By tensors it needs flash attention.
    yield "llama.cpp RPC, tensors", theirs(cpus, [*remote, "-sm", "tensor"])
    for transport in ("tcp", "shm"):
        yield f"Sinew, tensors, {transport}", ours(cpus, split("tensor", transport))
        yield f"Sinew, pipeline, {transport}", ours(cpus, split("pipeline", transport))


def measure(args, model, servers, cpus):
    """Test -> side -> tokens per second of each round."""
    tests = {f"pp{args.n_prompt}": ["-p", args.n_prompt, "-n", 0]}
    tests[f"tg{args.n_gen}"] = ["-p", 0, "-n", args.n_gen]
    found = {test: {} for test in tests}
    for at in range(args.rounds):
        print(f"{os.path.basename(model)}: round {at + 1} of {args.rounds}", flush=True)
        for name, take in sides(args, servers, cpus):
            for test, options in tests.items():
                found[test].setdefault(name, []).append(take(model, options))
    return found


def table(found):
    """A line a side: medians, lowest and highest, and what they are of each side's one node."""
    tests = list(found)
    yield "| side | " + " | ".join(f"{test}, t/s | of its one node" for test in tests) + " |"
    yield "| --- |" + " ---: | ---: |" * len(tests)
    for side in found[tests[0]]:
        own = "Sinew, one node" if side.startswith("Sinew") else "llama.cpp, one node"
        cells = []
        for test in tests:
            rates, alone = found[test][side], statistics.median(found[test][own])
            middle = statistics.median(rates)
            cells += [f"{middle:.1f} ({min(rates):.1f}-{max(rates):.1f})", f"{middle / alone:.2f}"]
        yield f"| {side} | " + " | ".join(cells) + " |"


def page(args, results):
    load = os.getloadavg()[2] if hasattr(os, "getloadavg") else float("nan")
    rival = args.llama if args.given else f"llama.cpp in llama-cpp-python {args.version} of PyPI"
    yield "# Sinew beside llama.cpp over RPC\n"
    yield f"- {datetime.date.today()}, {harness.machine()}, {platform.platform()}"
    yield f"- {harness.sinew_version(args.sinew)}; {rival}"
    yield f"- {args.nodes} nodes of one core and one thread each, on loopback; load {load:.1f}"
    yield f"- `{' '.join(['python3', *sys.argv])}`"
    yield f"- medians of {args.rounds} alternating rounds, in brackets the lowest and highest\n"
    yield "Sinew's TCP is encrypted, llama.cpp's RPC is not.\n"
    for model, found in results.items():
        yield f"## {model}\n"
        yield from table(found)
        yield ""


def main():
    args = arguments()
    harness.require_sinew(args.sinew)
    args.given = bool(args.llama)
    args.llama = args.llama or build(fetch(args.version), args.jobs)
    server = os.path.join(args.llama, "ggml-rpc-server")
    harness.require(server, rpc.BUILD)
    cpus = harness.first_cpus(args.nodes)
    made = types.SimpleNamespace(sinew=args.sinew)
    models = {name: performance.file(made, name) for name in args.models}
    # So that the servers are ended as well when the script is.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    with contextlib.ExitStack() as stack:
        own = [[cpu] for cpu in cpus] if cpus else [None] * args.nodes
        servers = [rpc.serve(server, cpu, stack) for cpu in own]
        results = {name: measure(args, path, servers, cpus) for name, path in models.items()}
    text = "\n".join(page(args, results))
    with open(args.page, "w") as out:
        out.write(text)
    print(f"\n{text}\n{args.page}")


if __name__ == "__main__":
    main()
