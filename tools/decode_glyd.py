#!/usr/bin/env python3
"""An independent decoder of packed directories, written from docs/format.md alone (numpy only).

  decode_glyd.py PACKED               decodes every packed matrix and compares each tensor with its SHA-256 in glyd.json
  decode_glyd.py PACKED TENSOR FILE   writes the bf16 bytes of one tensor of the original to FILE

Exit code 0 when all is equal, 1 otherwise.
"""
import hashlib
import json
import os
import struct
import sys

import numpy as np

LONGEST = 12  # bits of a code word
MIRROR = np.array([int(f"{i:012b}"[::-1], 2) for i in range(1 << LONGEST)], dtype=np.uint32)
POSITION = np.arange(4096)
LANE, BYTE = POSITION >> 4 & 31, POSITION & 15
ROW = LANE // 4 + 8 * (BYTE >> 1 & 1)
COLUMN = (POSITION >> 9) * 32 + 8 * (LANE % 4) + 2 * (BYTE >> 2) + (BYTE & 1)


def check(ok, what):
    if not ok:
        raise ValueError(what)


def align(n):
    return (n + 15) // 16 * 16


def read_code(section):
    """Tables by the next 12 bits, first bit highest: first exponent, second exponent, length."""
    counts = struct.unpack_from("<13H", section)
    check(len(section) == 26 + 2 * sum(counts), "the code section has another size")
    first, second, length = (np.zeros(1 << LONGEST, dtype=np.uint8) for _ in range(3))
    at, filled = 26, 0
    for bits, count in enumerate(counts):
        for _ in range(count):
            end = filled + (1 << (LONGEST - bits))
            check(end <= 1 << LONGEST and section[at] != 255 and section[at + 1] != 255, "no valid code")
            first[filled:end], second[filled:end], length[filled:end] = section[at], section[at + 1], bits
            at, filled = at + 2, end
    check(filled == 1 << LONGEST, "the code is not complete")
    return first, second, length


class Unit:
    """Where the parts of one unit lie; offsets are bytes of the stream section."""

    def __init__(self, streams, at, tile, block):
        word, = struct.unpack_from("<I", streams, at)
        self.tile, self.block = tile, block
        self.words, wide, exceptions = word & 0x3FF, word >> 10 & 1, word >> 11 & 0x1FFF
        lanes = np.arange(32)
        if wide:
            self.starts = np.frombuffer(streams, "<u2", 32, at + 4).astype(np.int64)
        else:
            self.starts = self.words * lanes + self.words // 2 + np.frombuffer(streams, "u1", 32, at + 4) - 128
        at += 4 + (64 if wide else 32)
        self.exceptions = np.frombuffer(streams, "<u4", exceptions, at)
        self.mask = word >> 24
        self.bits = at + 4 * exceptions
        self.end = self.bits + 4 * self.words
        check(self.end <= len(streams), "a unit reaches beyond the streams")


def decode_units(units, groups, code, padded, sign_mantissa):
    """Weights [unit][position] of units that all have `groups` groups; `padded` is the stream section between 8 zero bytes."""
    first, second, length = code
    base = (np.array([u.bits for u in units]) + 8)[:, None] * 8
    start = base + np.array([u.starts for u in units])
    up, down = start.copy(), start.copy()
    exponent = np.zeros((len(units), groups, 32, 16), dtype=np.uint16)

    def window(bit):
        byte = bit >> 3
        word = sum(padded[byte + i].astype(np.uint32) << (8 * i) for i in range(3))
        return word >> (bit & 7).astype(np.uint32) & 0xFFF

    for pair in range(4 * groups):
        group, byte = pair // 4, pair % 4 * 4
        index = MIRROR[window(up)]
        exponent[:, group, :, byte], exponent[:, group, :, byte + 1] = first[index], second[index]
        up += length[index]
        index = window(down - LONGEST)
        exponent[:, group, :, byte + 2], exponent[:, group, :, byte + 3] = first[index], second[index]
        down -= length[index]

    size = 32 * np.array([u.words for u in units])
    check((down[:, 0] == base[:, 0]).all() and (down[:, 1:] == up[:, :-1]).all(), "streams do not meet")
    left = base[:, 0] + size - up[:, -1]
    check(((left >= 0) & (left < 32)).all(), "streams end in the wrong place")

    sm = np.stack([sign_mantissa(u) for u in units]).reshape(exponent.shape).astype(np.uint16)
    weights = ((sm & 0x80) << 8 | exponent << 7 | (sm & 0x7F)).reshape(len(units), groups * 512)
    for i, u in enumerate(units):
        place = u.exceptions >> 16
        check((np.diff(place.astype(np.int64)) > 0).all() and (place < groups * 512).all(), "exceptions out of order")
        check((weights[i, place] == 0).all(), "an exception's place is not +0")
        check(u.mask == sum(1 << int(g) for g in set(place >> 9)), "the mask of groups disagrees with the exceptions")
        weights[i, place] = u.exceptions & 0xFFFF
    return weights


def decode_matrix(data):
    """A packed matrix as [rows][cols] 16-bit patterns."""
    magic, version, code_bytes, rows, cols, stream_bytes, *reserved = struct.unpack_from("<8sIIQQQ3Q", data)
    check(magic == b"GLYDMATR" and version == 1 and not any(reserved), "not a packed matrix of version 1")
    tiles, blocks, all_groups = -(-rows // 16), -(-cols // 256), -(-cols // 32)
    tile_sizes_at = align(64 + code_bytes)
    sign_mantissa_at = align(tile_sizes_at + 4 * tiles)
    streams_at = sign_mantissa_at + 512 * tiles * all_groups
    check(streams_at + stream_bytes == len(data), "sections do not add up")
    code = read_code(data[64:64 + code_bytes])
    tile_words = np.frombuffer(data, "<u4", tiles, tile_sizes_at)
    streams = data[streams_at:]
    padded = np.frombuffer(bytes(8) + streams + bytes(8), dtype=np.uint8)

    def sign_mantissa(unit):
        groups = min(8, all_groups - 8 * unit.block)
        return np.frombuffer(data, "u1", 512 * groups, sign_mantissa_at + 512 * (unit.tile * all_groups + 8 * unit.block))

    out, at = np.zeros((tiles * 16, blocks * 256), dtype=np.uint16), 0
    for tile in range(tiles):
        units, end = [], at + 4 * int(tile_words[tile])
        for block in range(blocks):
            units.append(Unit(streams, at, tile, block))
            at = units[-1].end
        check(at == end, "the units of a tile have another size than the tile")
        last = all_groups - 8 * (blocks - 1)
        for part, groups in ((units[:-1], 8), (units[-1:], last)):
            if not part:
                continue
            for unit, weights in zip(part, decode_units(part, groups, code, padded, sign_mantissa)):
                n = groups * 512
                out[tile * 16 + ROW[:n], unit.block * 256 + COLUMN[:n]] = weights
    check(at == stream_bytes, "the tiles are not all of the streams")
    return out[:rows, :cols]


def packed_tensors(folder):
    """{name: (file, offset, size)} of the U8 tensors NAME.glyd in the safetensors files of a folder."""
    places = {}
    for name in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        path = os.path.join(folder, name)
        with open(path, "rb") as f:
            length, = struct.unpack("<Q", f.read(8))
            header = json.loads(f.read(length))
        for tensor, entry in header.items():
            if tensor != "__metadata__" and tensor.endswith(".glyd"):
                begin, end = entry["data_offsets"]
                places[tensor[:-len(".glyd")]] = (path, 8 + length + begin, end - begin)
    return places


def main(args):
    if len(args) not in (1, 3):
        sys.exit(__doc__.strip())
    with open(os.path.join(args[0], "glyd.json"), encoding="utf-8") as f:
        manifest = json.load(f)
    check(manifest["format"] == "glyd-packed" and manifest["version"] == 1, "not a packed directory of version 1")
    sums = {t["name"]: t["sha256"] for f in manifest["files"] for t in f["tensors"]}
    places, wrong, compared = packed_tensors(args[0]), 0, 0
    for matrix in manifest["matrices"]:
        if len(args) == 3 and args[1] not in [m["tensor"] for m in matrix["members"]]:
            continue
        path, offset, size = places[matrix["name"]]
        with open(path, "rb") as f:
            f.seek(offset)
            weights = decode_matrix(f.read(size))
        row = 0
        for member in matrix["members"]:
            data = weights[row:row + member["rows"]].astype("<u2").tobytes()
            row += member["rows"]
            compared += 1
            if hashlib.sha256(data).hexdigest() != sums[member["tensor"]]:
                wrong += 1
                print(f"{member['tensor']}: differs from the original", file=sys.stderr)
            if len(args) == 3 and member["tensor"] == args[1]:
                with open(args[2], "wb") as f:
                    f.write(data)
    check(compared > 0 or len(args) == 1, f"no packed matrix holds {args[-2:][0]!r}")
    print(f"{compared} tensors decoded, {wrong} differ", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError, KeyError) as e:
        sys.exit(f"error: {e}")
