"""Seeded damage to model folders: one function per kind, each with its own place and value, and what must be said.

A kind takes random choices and a folder, makes a model there, damages it, and returns the words that the refusal
must show. Kinds in `VALUES` are found by reading weights, so by `build`; the others by `plan` already.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests import models

INDEX = "model.safetensors.index.json"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 269060552\n"
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
Kind = Callable[[Random, Path], tuple[str, ...]]


def read_tensors(path: Path) -> tuple[models.Tensors, dict[str, str]]:
    """The arrays of a safetensors file by name, and the dtype of those that numpy has no type for."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    known = {code: name for name, code in models.NUMPY_CODES.items()}
    tensors, codes = {}, {}
    for name, fact in header.items():
        start, end = (8 + size + offset for offset in fact["data_offsets"])
        kind = known.get(fact["dtype"], "uint16" if fact["dtype"] == "BF16" else "uint8")
        codes |= {} if fact["dtype"] in (*known, "BF16") else {name: fact["dtype"]}
        tensors[name] = np.frombuffer(data[start:end], kind).reshape(fact["shape"]).copy()
    return tensors, codes


def rewrite(path: Path, change: Callable[[models.Tensors, dict[str, str]], object]) -> None:
    tensors, codes = read_tensors(path)
    change(tensors, codes)
    models.write_safetensors(path, tensors, codes)


def llama(random: Random, folder: Path, **config: Any) -> Path:
    """A Llama of random depth, in one file or several."""
    return models.tiny_llama(folder, layers=random.randint(2, 5), shards=random.choice([1, 2, 3]), **config)


def shard(random: Random, folder: Path) -> Path:
    return random.choice(sorted(folder.glob("*.safetensors")))


def weight(random: Random, folder: Path, kinds: tuple[str, ...] = LINEARS) -> str:
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    return f"model.layers.{random.randrange(layers)}.{random.choice(kinds)}.weight"


# ---------------------------------------------------------------- shards and index


def shard_gone(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=random.randint(2, 5))
    path = shard(random, folder)
    path.unlink()
    return path.name, "is missing"


def shard_a_folder(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=random.randint(2, 5))
    path = shard(random, folder)
    path.unlink()
    path.mkdir()
    return path.name, "is no file"


def shard_twice(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=3)
    one, other = random.sample(sorted(folder.glob("*.safetensors")), 2)
    other.write_bytes(one.read_bytes())
    return other.name, "is missing here, where the index has it"


def tensor_moved(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=3)
    index = json.loads((folder / INDEX).read_text())
    name = random.choice(sorted(index["weight_map"]))
    others = sorted(set(index["weight_map"].values()) - {index["weight_map"][name]})
    index["weight_map"][name] = random.choice(others)
    models.write_json(folder / INDEX, index)
    return f"{name} is missing here", index["weight_map"][name]


def index_gone(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=random.randint(2, 5))
    (folder / INDEX).unlink()
    return "weight files", INDEX


def index_wrong(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=2)
    text = random.choice(
        ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', "<html>", "{" * 9000, "9" * 9000]
    )
    (folder / INDEX).write_text(text)
    return (INDEX,)


def two_sets(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4, shards=random.randint(2, 4))
    models.write_safetensors(folder / "model.safetensors", {"model.norm.weight": models.bf16(np.ones(64))})
    return "model.safetensors stands beside", "left over"


# ---------------------------------------------------------------- files


def cut_short(random: Random, folder: Path) -> tuple[str, ...]:
    path = shard(random, llama(random, folder))
    path.write_bytes(path.read_bytes()[: random.randrange(path.stat().st_size)])
    return (path.name,)


def too_long(random: Random, folder: Path) -> tuple[str, ...]:
    path = shard(random, llama(random, folder))
    path.write_bytes(path.read_bytes() + random.randbytes(random.randint(1, 999)))
    return path.name, "bytes after the last tensor"


def header_damaged(random: Random, folder: Path) -> tuple[str, ...]:
    path = shard(random, llama(random, folder))
    data = bytearray(path.read_bytes())
    at = random.randrange(8, int.from_bytes(data[:8], "little"))
    data[at : at + 4] = b"\xff\xfe\x00\x80"
    path.write_bytes(data)
    return (path.name,)


def pointer(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    names = ["config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"]
    path = folder / random.choice([*names, shard(random, folder).name])
    path.write_text(POINTER.format(f"{random.getrandbits(256):064x}"))
    return path.name, "Git LFS pointer", "git lfs pull"


def no_json(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    path = folder / random.choice(["config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"])
    wrong = [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe{}",
        b'{"a": ' + b"1" * 5000 + b"}",
        b"[" * 9000,
        b"null",
        b"<!DOCTYPE html>",
    ]
    path.write_bytes(random.choice(wrong))
    return (path.name,)


def dangling(random: Random, folder: Path) -> tuple[str, ...]:
    path = shard(random, llama(random, folder))
    path.unlink()
    path.symlink_to(f"../../blobs/{random.getrandbits(64):x}")
    return path.name, "leads nowhere"


# ---------------------------------------------------------------- tensors


def tensor_gone(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4)
    name = weight(random, folder, (*LINEARS, "input_layernorm", "mlp.gate_proj"))
    rewrite(folder / "model.safetensors", lambda tensors, codes: tensors.pop(name))
    return (f"{name} is missing",)


def tensor_of_another_shape(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=4)
    name, rows = weight(random, folder), random.choice([1, 30, 31])
    rewrite(folder / "model.safetensors", lambda tensors, codes: tensors.update({name: tensors[name][:rows]}))
    return f"{name} is [", "the configuration asks for"


def layers_too_many(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=5)
    count = random.randint(1, 4)
    models.edit_json(folder / "config.json", num_hidden_layers=count)
    return f"is of layer {count}", f"{count} layers"


def expert_gone(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_mixtral(folder, experts=4)
    part = f"experts.{random.randrange(4)}.{random.choice(['w1', 'w2', 'w3'])}.weight"
    name = f"model.layers.{random.randrange(2)}.block_sparse_moe.{part}"
    rewrite(folder / "model.safetensors", lambda tensors, codes: tensors.pop(name))
    if random.random() < 0.5:  # a type whose layers need not be alike
        models.edit_json(folder / "config.json", model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"])
    return (f"{name} is missing",)


def head_gone(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=random.randint(1, 4))
    models.edit_json(folder / "config.json", tie_word_embeddings=random.choice([False, None]))
    return "lm_head.weight is missing", "tie_word_embeddings"


# ---------------------------------------------------------------- values

NOT_FINITE: dict[str, tuple[Any, tuple[int, ...]]] = {
    "F64": (np.uint64, (0x7FF0_0000_0000_0000, 0x7FF8_0000_0000_0001)),
    "F32": (np.uint32, (0x7F80_0000, 0xFF80_0000, 0x7FC0_0000)),
    "F16": (np.uint16, (0x7C00, 0xFE01)),
    "BF16": (np.uint16, (0x7F80, 0xFF80, 0x7FC0)),
    "F8_E4M3": (np.uint8, (0x7F, 0xFF)),
    "F8_E5M2": (np.uint8, (0x7C, 0xFE)),
    "F8_E8M0": (np.uint8, (0xFF,)),
    "F8_E4M3FNUZ": (np.uint8, (0x80,)),
    "F8_E5M2FNUZ": (np.uint8, (0x80,)),
}


def not_finite(random: Random, folder: Path) -> tuple[str, ...]:
    """In a weight, or (what has 8 bits) in the scales of a quantized one."""
    models.tiny_llama(folder, layers=3)
    code = random.choice(list(NOT_FINITE))
    kind, values = NOT_FINITE[code]
    name = weight(random, folder)
    scales = f"{name}_scale" if code.startswith("F8") else name

    def plant(tensors: models.Tensors, codes: dict[str, str]) -> None:
        rows, columns = tensors[name].shape
        if scales != name:
            tensors[name] = np.ones((rows, columns), np.int8)
            for other in fused_with(name):
                tensors[other] = np.ones(tensors[other].shape, np.int8)
                tensors[f"{other}_scale"] = np.full((tensors[other].shape[0], 4), 0x38, kind)
                codes[f"{other}_scale"] = code
        array = np.full((rows, columns if scales == name else 4), 0x38, kind)
        array[random.randrange(rows), random.randrange(4)] = random.choice(values)
        tensors[scales] = array
        codes[scales] = code

    rewrite(folder / "model.safetensors", plant)
    if scales != name:
        group = {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}
        quantized = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
        models.edit_json(folder / "config.json", quantization_config=quantized)
    return f"{scales}[", code


def fused_with(name: str) -> list[str]:
    """The weights that engines load as one with `name`, itself left out."""
    for group in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        part = name.split(".")[-2]
        if part in group:
            return [name.replace(part, other) for other in group if other != part]
    return []


def tied_twice(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=2)

    def plant(tensors: models.Tensors, codes: dict[str, str]) -> None:
        head = tensors["model.embed_tokens.weight"].copy()
        head[random.randrange(320), random.randrange(64)] ^= 1
        tensors["lm_head.weight"] = head

    rewrite(folder / "model.safetensors", plant)
    return "lm_head.weight differs from model.embed_tokens.weight", "tie_word_embeddings"


# ---------------------------------------------------------------- how weights are stored


def quantized_without_a_word(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=3)
    name = weight(random, folder)

    def plant(tensors: models.Tensors, codes: dict[str, str]) -> None:
        tensors[name] = np.ones(tensors[name].shape, random.choice([np.int8, np.uint8]))
        tensors[f"{name}_scale"] = models.bf16(np.ones((len(tensors[name]), 1)))

    rewrite(folder / "model.safetensors", plant)
    return name, "names no quantization_config"


def a_word_without_quantized(random: Random, folder: Path) -> tuple[str, ...]:
    method = random.choice(["gptq", "awq", "compressed-tensors"])
    llama(random, folder, quantization_config={"quant_method": method, "bits": 4, "group_size": 128})
    return "quantization_config says", method, "no weight is stored so"


def scales_gone(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=3, quantization_config={"quant_method": "compressed-tensors"})
    name = weight(random, folder, ("self_attn.o_proj", "mlp.down_proj"))

    def plant(tensors: models.Tensors, codes: dict[str, str]) -> None:
        tensors[name] = np.ones(tensors[name].shape, np.int8)

    rewrite(folder / "model.safetensors", plant)
    return f"{name} is I8", f"{name}_scale is missing"


def fused_apart(random: Random, folder: Path) -> tuple[str, ...]:
    models.tiny_llama(folder, layers=3, quantization_config={"quant_method": "compressed-tensors"})
    name = weight(random, folder, ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"))

    def plant(tensors: models.Tensors, codes: dict[str, str]) -> None:
        tensors[name] = np.ones(tensors[name].shape, np.int8)
        tensors[f"{name}_scale"] = models.bf16(np.ones((len(tensors[name]), 1)))

    rewrite(folder / "model.safetensors", plant)
    return name.removesuffix(".weight"), "stored in different ways"


# ---------------------------------------------------------------- tokenizer, template, configuration


def too_many_tokens(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    path, last = folder / "tokenizer.json", 320 + random.randrange(1000)
    tokens = json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
    models.edit_json(path, added_tokens=[*tokens, {**tokens[0], "id": last, "content": "<|more|>"}])
    return "tokenizer.json", str(last), "320 rows"


def a_special_token_too_many(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder, vocab_size=285)
    key = random.choice(["pad_token", "unk_token", "eos_token"])
    value = random.choice(["[PAD]", {"content": "[PAD]", "special": True}])
    models.edit_json(folder / "tokenizer_config.json", **{key: value})
    return key, "'[PAD]'", "285 rows"


def broken_template(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    wrong = ["{% for m in messages %}", "{{ messages[0 }}", "{% endif %}", "{% fro m in messages %}{% endfor %}"]
    text = "x\n" * random.randrange(3) + random.choice(wrong)
    if random.random() < 0.5:
        (folder / "chat_template.jinja").write_text(text)
    else:
        models.edit_json(folder / "tokenizer_config.json", chat_template=text)
    return "chat template cannot be parsed", "line "


def no_template(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    value = random.choice([7, {"default": "x"}, ["x"], [{"name": "default"}]])
    models.edit_json(folder / "tokenizer_config.json", chat_template=value)
    return "tokenizer_config.json", "chat_template"


def code_gone(random: Random, folder: Path) -> tuple[str, ...]:
    module = f"modeling_{random.choice(['a', 'b', 'c'])}"
    where, reference = random.choice([("config.json", f"{module}.X"), ("tokenizer_config.json", [f"{module}.X", None])])
    llama(random, folder)
    models.edit_json(folder / where, auto_map={"AutoTokenizer" if "tok" in where else "AutoModel": reference})
    return f"{module}.py", "auto_map"


def code_outside(random: Random, folder: Path) -> tuple[str, ...]:
    reference = random.choice(["../../etc/x.X", "/tmp/x.X", "a b.X", "x;y.Z"])
    llama(random, folder, auto_map={"AutoModelForCausalLM": reference})
    return repr(reference), "module.Class"


def a_size_that_is_none(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    key = random.choice(["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"])
    value = random.choice(["64", -1, 2.5, True, [64], {}])
    models.edit_json(folder / "config.json", **{key: value})
    return f"{key}: {value!r}", "is not a size"


def another_kind_of_model(random: Random, folder: Path) -> tuple[str, ...]:
    change, shown = random.choice([
        ({"architectures": ["LlamaForSequenceClassification"]}, "no model that continues a text"),
        ({"architectures": ["BertForMaskedLM"]}, "no model that continues a text"),
        ({"architectures": ["LlamaModel"]}, "without a language head"),
        ({"is_encoder_decoder": True}, "no model that continues a text"),
        ({"architectures": None}, "names no class"),
        ({"architectures": []}, "names no class"),
        ({"model_type": None}, "model_type: None"),
        ({"model_type": 5}, "model_type: 5"),
    ])  # fmt: skip
    llama(random, folder)
    models.edit_json(folder / "config.json", **change)
    return "config.json", shown


def a_value_out_of_range(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    key, value = random.choice([
        ("eos_token_id", "</s>"), ("bos_token_id", [0, 1.5]), ("pad_token_id", "<pad>"), ("rms_norm_eps", 0),
        ("rms_norm_eps", "1e-5"), ("rope_theta", -1.0), ("dtype", "float17"), ("num_key_value_heads", 3),
    ])  # fmt: skip
    models.edit_json(folder / "config.json", **{key: value})
    return ("config.json", "3 key-value heads") if key == "num_key_value_heads" else ("config.json", f"{key}: ")


def a_setting_out_of_range(random: Random, folder: Path) -> tuple[str, ...]:
    llama(random, folder)
    key, value = random.choice([
        ("top_p", 0), ("top_p", 1.5), ("temperature", -1), ("temperature", "hot"), ("top_k", -2), ("min_p", 2),
        ("repetition_penalty", 0), ("max_new_tokens", 0), ("eos_token_id", 99999), ("eos_token_id", [1, -3]),
    ])  # fmt: skip
    models.edit_json(folder / "generation_config.json", **{key: value})
    return "generation_config.json", f"{key}: "


VALUES: tuple[Kind, ...] = (not_finite, tied_twice, broken_template)
HEADERS: tuple[Kind, ...] = (
    shard_gone, shard_a_folder, shard_twice, tensor_moved, index_gone, index_wrong, two_sets, cut_short, too_long,
    header_damaged, pointer, no_json, dangling, tensor_gone, tensor_of_another_shape, layers_too_many, expert_gone,
    head_gone, quantized_without_a_word, a_word_without_quantized, scales_gone, fused_apart, too_many_tokens,
    a_special_token_too_many, no_template, code_gone, code_outside, a_size_that_is_none, another_kind_of_model,
    a_value_out_of_range, a_setting_out_of_range,
)  # fmt: skip


# ---------------------------------------------------------------- anything anywhere

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), "", "x", "64", "../../x",
    "\ud800", "\0", "a.b", "²", " ", 4, 8, 128, [], [None], [[]], [1, 2], ["x"], {}, {"x": None},
    {"content": 3}, {"": {}},
)  # fmt: skip


def damage_json(random: Random, folder: Path, name: str) -> None:
    """Put something odd at a random place of a JSON file, or of the header of a shard; or cut or flip its text."""
    path = folder / name if name != "header" and (folder / name).exists() else shard(random, folder)
    name = name if path.suffix != ".safetensors" else "header"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little") if name == "header" else len(data)
    start = 8 if name == "header" else 0
    text, rest = data[start : start + size], data[start + size :]
    try:
        value = json.loads(text)
    except ValueError:
        return
    if random.random() < 0.8:
        text = json.dumps(odd(random, value)).encode()
    else:
        at = random.randrange(len(text))
        text = text[:at] + random.choice([b"", b",", b"}", b'"', b"0", b"\xff"]) + text[at + random.randint(0, 3) :]
    path.write_bytes((len(text).to_bytes(8, "little") if name == "header" else b"") + text + rest)


def odd(random: Random, value: Any) -> Any:
    """The value with one of its parts, at a random depth, taken out or made something else."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        if random.random() < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: odd(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.9:
        at = random.randrange(len(value))
        return [*value[:at], odd(random, value[at]), *value[at + 1 :]]
    return random.choice(ODD)
