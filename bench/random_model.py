#!/usr/bin/env python3
"""Writes a model directory of a published shape with random weights, to measure loading and packing at real sizes.

    bench/random_model.py models/qwen3-4b /tmp/qwen3-4b

Dense Qwen2, Qwen2.5, Qwen3 and Llama configs. Matrices are normal with deviation 0.02, norms 1, biases 0.01, all bf16,
in files of about 4 GB with an index. Weights come from one pool of two million normal values, read from a place of its
own for each tensor: they repeat, which a codec that works on 4,096 weights at a time does not notice.
"""

import array
import json
import math
import pathlib
import random
import shutil
import sys

POOL = 2_000_003  # a prime: no two rows of a matrix begin at the same place
FILE_BYTES = 4 << 30


def bf16(values):
    """The upper halves of float32 values, as bytes."""
    halves = array.array("H", array.array("f", values).tobytes())
    if sys.byteorder != "little":
        sys.exit("this script needs a little-endian machine")
    return halves[1::2].tobytes()


def tensors(config):
    """(name, shape) of all tensors in the order of a forward pass."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, vocab = config["num_attention_heads"], config["vocab_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    family = config["model_type"]
    biases = family == "qwen2" or config.get("attention_bias", False)
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        yield p + "input_layernorm.weight", (hidden,)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            yield p + f"self_attn.{name}_proj.weight", (count * head_dim, hidden)
            if biases:
                yield p + f"self_attn.{name}_proj.bias", (count * head_dim,)
        if family == "qwen3":
            yield p + "self_attn.q_norm.weight", (head_dim,)
            yield p + "self_attn.k_norm.weight", (head_dim,)
        yield p + "self_attn.o_proj.weight", (hidden, heads * head_dim)
        if biases and family != "qwen2":
            yield p + "self_attn.o_proj.bias", (hidden,)
        yield p + "post_attention_layernorm.weight", (hidden,)
        yield p + "mlp.gate_proj.weight", (inner, hidden)
        yield p + "mlp.up_proj.weight", (inner, hidden)
        yield p + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings", False):
        yield "lm_head.weight", (vocab, hidden)


def files(all_tensors):
    """Groups of tensors that go into one file each."""
    group, size = [], 0
    for name, shape in all_tensors:
        count = math.prod(shape)
        if group and size + 2 * count > FILE_BYTES:
            yield group
            group, size = [], 0
        group.append((name, shape, count))
        size += 2 * count
    yield group


def write_values(out, name, count, pool):
    if name.endswith("norm.weight") or name.endswith("bias"):
        out.write(bf16([1.0 if name.endswith("weight") else 0.01]) * count)
        return
    at = random.randrange(POOL)
    while count > 0:
        part = pool[2 * at : 2 * (at + count)]
        out.write(part)
        count -= len(part) // 2
        at = 0


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text())
    if config.get("model_type") not in ("qwen2", "qwen3", "llama"):
        sys.exit(f"{source / 'config.json'}: model_type {config.get('model_type')!r} is not one that this script knows")
    if config.get("mlp_bias"):
        sys.exit(f"{source / 'config.json'}: mlp_bias is not one of the keys that this script knows")
    if target.exists():
        sys.exit(f"{target} is there already: name a folder that is not, or remove it")
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and ".safetensors" not in file.name:
            shutil.copy(file, target)
    random.seed(1)
    pool = memoryview(bf16(random.gauss(0, 0.02) for _ in range(POOL)))
    groups, index = list(files(tensors(config))), {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05}-of-{len(groups):05}.safetensors"
        header, end = {}, 0
        for name, shape, count in group:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * count]}
            end += 2 * count
            index[name] = file
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(target / file, "wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for name, _, count in group:
                write_values(out, name, count, pool)
    (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


main()
