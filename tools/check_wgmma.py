#!/usr/bin/env python3
"""Whether compiled kernels write registers that a wgmma under way still reads.

    tools/check_wgmma.py build/release/cuda/libglyd_cuda.a
    tools/check_wgmma.py listing.sass

wgmma reads its A registers while the warp goes on. The compiler keeps them from being written until the wgmma has been
waited for, but not where a load stands in a branch, which no source shows and a test only once in many runs. This
reads the machine code (a library's or object's by cuobjdump -sass, or such a listing) and goes through each loop with
wgmma twice, in the order of its addresses. Exit code 0: no such write; 1: some; 77: there is no cuobjdump (of the CUDA
toolkit), or no kernel with wgmma.
"""

import re
import shutil
import subprocess
import sys

INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,6})\*/\s+(?:@!?U?P\w+\s+)?(\S+)\s*(.*?)\s*;")
BACKWARD = re.compile(r"0x([0-9a-f]+)$")


def listing(path):
    if path.endswith(".sass"):
        with open(path, encoding="utf-8") as file:
            return file.read()
    if not shutil.which("cuobjdump"):
        print("skipped: no cuobjdump", file=sys.stderr)
        sys.exit(77)
    dump = subprocess.run(["cuobjdump", "-sass", path], capture_output=True, text=True)
    if dump.returncode != 0:
        sys.exit(f"error: {path}: {dump.stderr.strip() or 'cuobjdump cannot read it'}")
    return dump.stdout


def kernels(sass):
    """Yields the name and the instructions (address, opcode, operands) of each kernel."""
    for text in sass.split("Function : ")[1:]:
        found = (INSTRUCTION.match(line) for line in text.splitlines())
        yield text.split(None, 1)[0], [(int(m[1], 16), m[2], m[3]) for m in found if m]


def loops(code):
    """The innermost loops that have a wgmma, as ranges of places in the code."""
    place = {address: i for i, (address, _, _) in enumerate(code)}
    ranges = []
    for i, (address, opcode, operands) in enumerate(code):
        target = BACKWARD.search(operands) if opcode == "BRA" else None
        if target and int(target[1], 16) < address and int(target[1], 16) in place:
            begin = place[int(target[1], 16)]
            if any(op.startswith("HGMMA") for _, op, _ in code[begin:i]):
                ranges.append((begin, i + 1))
    return [r for r in ranges if not any(r != s and r[0] <= s[0] and s[1] <= r[1] for s in ranges)]


def registers(name, count):
    first = int(name[1:])
    return set(range(first, first + count))


def written(opcode, operands):
    target = re.match(r"R(\d+)\b", operands)  # others write to memory, predicates or uniform registers
    if not target:
        return set()
    four = ".128" in opcode or opcode.startswith("HMMA")
    return registers(target[0], 4 if four else 2 if ".64" in opcode or "WIDE" in opcode else 1)


def check(code):
    """Yields (address of the write, address of the wgmma) in a loop."""
    batches, batch = [], []  # of wgmmas under way: committed ones, and those since
    for address, opcode, operands in code * 2:
        if opcode.startswith("HGMMA"):
            a = operands.split(",")[1].strip()  # or a descriptor of shared memory
            batch.append((address, registers(a, 4) if a.startswith("R") else set()))
            if "gsb0" in operands:
                batches.append(batch)
                batch = []
        elif opcode.startswith("WARPGROUP.DEPBAR"):
            pending = int(operands.split(",")[1], 16)
            batches = batches[max(0, len(batches) - pending) :]
        else:
            target = written(opcode, operands)
            for of, read in sum(batches, batch):
                if target & read:
                    yield address, of


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    count = bad = 0
    for name, code in kernels(listing(sys.argv[1])):
        for begin, end in loops(code):
            count += 1
            for address, of in sorted(set(check(code[begin:end]))):
                bad += 1
                print(f"{name}: {address:#x} writes what the wgmma at {of:#x} may still read")
    print(f"{count} loops with wgmma, {bad} such writes", file=sys.stderr)
    sys.exit(1 if bad else 0 if count else 77)


if __name__ == "__main__":
    main()
