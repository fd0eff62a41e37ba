"""Worker body `gguf`: a GGUF file becomes a bfloat16 Hugging Face folder with the tokenizer put right.

transformers reads the weights. Its tokenizer from a GGUF is wrong where it matters (end of sequence,
padding, digits, clean-up of spaces), so the tokenizer is built again from the file's own keys.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from optpipe.backends.converters.tokenizer import write_tokenizer
from optpipe.errors import InputError
from optpipe.model import gguf
from optpipe.model.gguf_names import shortest
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1

DROPPED = ("_name_or_path", "_model_name_or_path")
"""Keys that the reader fills with this machine's path or the file's free-form title."""


def run(options: Json, work: Work) -> Json:
    """Inputs: gguf (a file). Files: the folder. Record: notes, dtype, pre-tokenizer, vocabulary."""
    try:
        front = gguf.read(work.inputs["gguf"])
    except InputError as error:
        raise Failure(f"{error.place}: {error.message}", hint=error.hint) from error
    work.out.mkdir(parents=True, exist_ok=True)
    tokens = write_tokenizer(front, work.out)
    work.progress(1, 3, "tokenizer built from the GGUF's keys")
    vocabulary = convert_weights(front.path, work.out)
    work.progress(2, 3, "weights converted")
    if tokens > vocabulary:
        raise Failure(f"{front.path.name}: {tokens} tokens, but the embedding has {vocabulary} rows")
    notes = repair_config(work.out / "config.json", work.out / "generation_config.json", front)
    work.progress(3, 3, "configuration repaired")
    return {
        "dtype": "bfloat16",
        "pre_tokenizer": front.metadata["tokenizer.ggml.pre"],
        "vocabulary": vocabulary,
        "was": front.quantized,
        "notes": [*origin(front), *notes],
    }


def origin(front: gguf.Gguf) -> list[str]:
    """What a reader must know wherever the model is used."""
    if front.quantized is None:
        return []
    bits = gguf.bits_of(front.quantized)
    return [f"was {front.quantized}: {bits}-bit once, so the base is not the original full-precision model"]


def convert_weights(path: Path, out: Path) -> int:
    """Write config.json and model.safetensors in bfloat16; the rows of the embedding."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    rows = int(model.get_input_embeddings().weight.shape[0])
    model.save_pretrained(str(out))
    for file in out.iterdir():
        file.chmod(0o644)
    return rows


def repair_config(config_file: Path, generation_file: Path, front: gguf.Gguf) -> list[str]:
    """Numbers back from float32, `rope_theta` for old readers, token ids from the GGUF; what was changed."""
    raw = json.loads(config_file.read_text(encoding="utf-8"))
    config = _decimals({key: value for key, value in raw.items() if key not in DROPPED})
    notes = [
        f"config.json: {key} {raw[key]!r} is {config[key]!r} rounded to float32: repaired"
        for key in sorted(config)
        if isinstance(config[key], float) and config[key] != raw[key]
    ]
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        # transformers 4 falls back to 10000 without a word when the key is not at the top.
        config["rope_theta"] = rope["rope_theta"]
    ids = token_ids(front)
    config |= {key: value for key, value in ids.items() if key != "eos_token_id"}
    config["eos_token_id"] = front.metadata.get("tokenizer.ggml.eos_token_id")
    _write(config_file, config)
    _write(generation_file, ids)
    return notes


def token_ids(front: gguf.Gguf) -> Json:
    """bos, eos (with the end of turn, where the file names another one) and pad."""
    section = "tokenizer.ggml."
    bos, eos, turn, pad = (
        front.metadata.get(f"{section}{name}_token_id") for name in ("bos", "eos", "eot", "padding")
    )
    ends = eos if turn in (None, eos) else [eos, turn]
    ids = {"bos_token_id": bos, "eos_token_id": ends, "pad_token_id": pad}
    return {key: value for key, value in ids.items() if value is not None}


def _decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decimals(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decimals(item) for item in value]
    return shortest(value)


def _write(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
