"""A wider model that computes the same: a Llama's weights among zeros, so that one small model is judged and timed.

    python widen.py BASE OUT FACTOR

Hidden size, heads and inner size grow by FACTOR, which must be a power of 4: RMSNorm then divides by the mean over
FACTOR times as many values, which its weight takes back by sqrt(FACTOR), exactly in bf16, and its epsilon by FACTOR.
What is multiplied is mostly zeros: kernels take as long, but a GPU draws less power on them, and may clock higher.
Standard library only at import; runs where torch and safetensors are.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def widen(base: Path, out: Path, factor: int) -> int:
    """Write the wider model to `out`; its parameters. ValueError for another kind of model or factor."""
    from safetensors.torch import load_file, save_file

    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] != "llama" or config.get("attention_bias") or config.get("mlp_bias"):
        raise ValueError(f"{base}: only a Llama without biases is widened, this is {config['model_type']}")
    if factor < 1 or math.isqrt(factor) ** 2 != factor or factor & (factor - 1):
        raise ValueError(f"factor {factor} is not a power of 4")
    out.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Any] = {}
    for path in sorted(base.glob("*.safetensors")):
        tensors |= load_file(path)
    wide = {name: widened(name, tensor, factor) for name, tensor in tensors.items()}
    save_file(wide, out / "model.safetensors", {"format": "pt"})
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        config[key] *= factor
    config["rms_norm_eps"] /= factor
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in COPIED:
        if (base / name).is_file():
            shutil.copyfile(base / name, out / name)
    return sum(tensor.numel() for tensor in wide.values())


def widened(name: str, tensor: Any, factor: int) -> Any:
    """The tensor in the corner of one that is FACTOR times as large; vocabulary stays, norms are scaled."""
    if tensor.ndim == 1:
        filled = tensor.new_ones(tensor.shape[0] * factor)
        filled[: tensor.shape[0]] = tensor / math.sqrt(factor)
        return filled
    rows, columns = tensor.shape
    vocabulary = "embed_tokens" in name or "lm_head" in name
    filled = tensor.new_zeros(rows if vocabulary else rows * factor, columns * factor)
    filled[:rows, :columns] = tensor
    return filled


if __name__ == "__main__":
    parameters = widen(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    sys.stdout.write(json.dumps({"parameters": parameters}) + "\n")
