#!/usr/bin/env python3
"""Extracts the uncompressed kernel from a bzImage: `extract-vmlinux.py BZIMAGE OUT`.

QEMU boots an uncompressed kernel directly, which saves seconds of emulated decompression.
"""

import lzma
import subprocess
import sys
import zlib


def unzstd(data):
    return subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=False).stdout


# The first bytes of a payload, and how to unpack it.
FORMATS = (
    (b"\xfd7zXZ\x00", lambda data: lzma.LZMADecompressor().decompress(data)),
    (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
    (b"\x28\xb5\x2f\xfd", unzstd),
)


def kernel_in(image):
    """The first payload that unpacks to an ELF file."""
    for magic, unpack in FORMATS:
        at = image.find(magic)
        while at >= 0:
            try:
                kernel = unpack(image[at:])
                if kernel[:4] == b"\x7fELF":
                    return kernel
            except (lzma.LZMAError, zlib.error, OSError):
                pass
            at = image.find(magic, at + 1)
    sys.exit("no kernel found in the image")


with open(sys.argv[1], "rb") as source:
    kernel = kernel_in(source.read())
with open(sys.argv[2], "wb") as target:
    target.write(kernel)
