#!/usr/bin/env python3
"""Checks a program for Macs without a Mac: what it wants of the system is there on macOS 14.

    scripts/macos/imports.py PROGRAM STUB...

Each STUB (.tbd) lists what the libraries of macOS 14 export: that of libSystem comes with Zig, those
of frameworks lie beside this script. Fails if the program imports anything else, needs a newer
system, is not for Apple's processors, or has no signature, without which they run nothing.
"""

import re
import struct
import sys

MAGIC_64, CPU_ARM64, EXECUTE = 0xFEEDFACF, 0x0100000C, 2
LC_SYMTAB, LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB, LC_REEXPORT_DYLIB = 0x2, 0xC, 0x80000018, 0x8000001F
LC_CODE_SIGNATURE, LC_BUILD_VERSION = 0x1D, 0x32
N_STAB, N_TYPE, N_EXT = 0xE0, 0x0E, 0x01
MACOS, NEWEST = 1, (14, 0)
TARGETS = {"arm64-macos", "arm64e-macos"}
# In macOS 14, and nothing of theirs is used: Rust's crate for C names them.
UNUSED = {"/usr/lib/libiconv.2.dylib", "/usr/lib/libcharset.1.dylib"}


def lists(text, key):
    """Values of `key: [ a, 'b', ... ]`, as text-based stubs write them."""
    for found in re.finditer(key + r":\s*\[([^\]]*)\]", text):
        yield [word.strip().strip("'\"") for word in found[1].split(",") if word.strip()]


def exports(stub):
    """Of a stub: library -> symbols that it exports to a program for Apple's processors. A library
    exports what those do that it passes on, and these stand in the same file."""
    libraries = {}
    for document in open(stub).read().split("--- !tapi-tbd")[1:]:
        name = re.search(r"^install-name:\s*'?([^'\n]+)'?", document, re.M)[1].strip()
        symbols = set()
        for section in re.split(r"\n  - ", document)[1:]:
            if any(TARGETS & set(targets) for targets in lists(section, "targets")):
                for kind in ("symbols", "weak-symbols"):
                    for names in lists(section, rf"(?<![\w-]){kind}"):
                        symbols.update(names)
        libraries[name] = symbols
    main = next(iter(libraries))
    return main, set().union(*libraries.values())


class Program:
    """What a Mach-O file says of itself."""

    def __init__(self, path):
        self.bytes = open(path, "rb").read()
        magic, cpu, _, kind, commands, _, _, _ = self.numbers("<8I", 0)
        if (magic, cpu, kind) != (MAGIC_64, CPU_ARM64, EXECUTE):
            sys.exit(f"{path} is no program for Apple's processors: {magic:#x} {cpu:#x} {kind}")
        self.libraries, self.signed, self.oldest, self.imports = [], False, None, []
        at, symbols = 32, None
        for _ in range(commands):
            command, size = self.numbers("<2I", at)
            if command in (LC_LOAD_DYLIB, LC_LOAD_WEAK_DYLIB, LC_REEXPORT_DYLIB):
                [name] = self.numbers("<I", at + 8)
                self.libraries.append(self.text(at + name))
            elif command == LC_SYMTAB:
                symbols = self.numbers("<4I", at + 8)
            elif command == LC_CODE_SIGNATURE:
                self.signed = True
            elif command == LC_BUILD_VERSION:
                platform, version = self.numbers("<2I", at + 8)
                if platform == MACOS:
                    self.oldest = (version >> 16, version >> 8 & 0xFF)
            at += size
        offset, count, strings, _ = symbols
        for index in range(count):
            name, kind, _, about, _ = self.numbers("<IBBHQ", offset + 16 * index)
            if not kind & N_STAB and kind & N_EXT and kind & N_TYPE == 0:
                self.imports.append((self.text(strings + name), about >> 8))

    def numbers(self, shape, at):
        return struct.unpack_from(shape, self.bytes, at)

    def text(self, at):
        return self.bytes[at : self.bytes.index(b"\0", at)].decode()


def main(path, stubs):
    known = dict(exports(stub) for stub in stubs)
    program, wrong = Program(path), []
    if not program.signed:
        wrong.append("it has no signature")
    if program.oldest is None or program.oldest > NEWEST:
        wrong.append(f"it needs macOS {program.oldest}, more than {NEWEST}")
    if not program.imports:
        wrong.append("it imports nothing, so this check saw nothing")
    counts = dict.fromkeys(program.libraries, 0)
    for symbol, ordinal in program.imports:
        library = program.libraries[ordinal - 1] if 0 < ordinal <= len(program.libraries) else None
        if library not in known:
            wrong.append(f"{symbol} comes from {library or ordinal}, of which no stub is")
        elif symbol not in known[library]:
            wrong.append(f"{symbol} is not in {library} of macOS {NEWEST[0]}")
        else:
            counts[library] += 1
    expected = UNUSED | set(known)
    wrong += [f"no stub is of {name}" for name in program.libraries if name not in expected]
    for library, count in counts.items():
        print(f"{count} symbols of {library}")
    if wrong:
        sys.exit(f"{path}:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
