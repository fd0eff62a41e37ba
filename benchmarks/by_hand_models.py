"""The engineer's script, first half: every checkpoint and its quality, in one process of one environment.

    python by_hand_models.py plan.json folder

Straight-line code by someone who knows the libraries; imports nothing of optpipe. Every library is imported
once, the base is scored once and its logits stay in memory, each method loads the model once and is scored
in memory before it is saved.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BATCH = 8
CHUNK = 256
"""Tokens whose logits over the vocabulary are compared at once."""


def main(plan: dict[str, Any], folder: Path) -> None:
    with step("imports"):
        import llmcompressor  # noqa: F401
        import torch
        import transformers

        torch.set_num_threads(plan["threads"])
        torch.manual_seed(plan["seed"])
        transformers.utils.logging.disable_progress_bar()
    base = folder / "base"
    with step("base: load model and convert"):
        model, tokenizer = load_source(plan["source"])
        model.save_pretrained(base)
        tokenizer.save_pretrained(base)
    with step("base: score"):
        known = {rows: score(model, rows, None) for rows in plan["scored"]["base"]}
    results = {"base": [summary(known[rows]) for rows in plan["scored"]["base"]]}
    for name, scheme in plan["checkpoints"].items():
        with step(f"{name}: load model"):
            model = load(base)
        with step(f"{name}: quantize"):
            quantize(model, scheme, plan["calibration"])
        with step(f"{name}: score"):
            results[name] = [summary(score(model, rows, known[rows]["logits"])) for rows in plan["scored"][name]]
        with step(f"{name}: save"):
            model.save_pretrained(folder / name, save_compressed=True)
            tokenizer.save_pretrained(folder / name)
    (folder / "quality.json").write_text(json.dumps(results, indent=1))


def load_source(source: dict[str, str]) -> tuple[Any, Any]:
    """Model and tokenizer from a GGUF file or a folder, in bfloat16."""
    from transformers import AutoTokenizer, GgufConfig

    if "gguf" not in source:
        return load(Path(source["folder"])), AutoTokenizer.from_pretrained(source["folder"])
    file = Path(source["gguf"])
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return load(file.parent, gguf_file=file.name, quantization_config=GgufConfig(dequantize=True)), tokenizer


def load(folder: Path, **options: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options).eval()


def quantize(model: Any, scheme: dict[str, Any], calibration: str) -> None:
    """INT8 W8A8 by rounding, or GPTQ with 4-bit groups, as the recipe has them."""
    import numpy
    import torch
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from torch.utils.data import DataLoader

    if scheme["method"] == "int8":
        oneshot(model=model, recipe=QuantizationModifier(targets="Linear", scheme="W8A8", ignore=["lm_head"]))
        return
    assert scheme["method"] == "gptq", f"this script knows int8 and gptq, not {scheme['method']!r}"
    weights = {"num_bits": scheme["bits"], "type": "int", "symmetric": scheme["symmetric"], "dynamic": False}
    weights |= {"strategy": "group", "group_size": scheme["group_size"]}
    modifier = GPTQModifier(
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
        ignore=["lm_head"],
        dampening_frac=scheme["dampening"],
        actorder="static" if scheme["activation_order"] else None,
    )
    rows = torch.from_numpy(numpy.load(calibration).astype("int64"))
    data = DataLoader([{"input_ids": row} for row in rows], batch_size=1)
    oneshot(model=model, recipe=modifier, dataset=data, shuffle_calibration_samples=False)


def score(model: Any, rows_file: str, base: list[Any] | None) -> dict[str, Any]:
    """Negative log-likelihood of each row, KL(base || model) and equal argmaxes; the base keeps its logits."""
    import numpy
    import torch

    rows = torch.from_numpy(numpy.load(rows_file).astype("int64"))
    nll: list[float] = []
    logits: list[Any] = []
    kl, agree = 0.0, 0
    with torch.inference_mode():
        for batch in rows.split(BATCH):
            own = model(input_ids=batch, use_cache=False).logits[:, :-1]
            for row, ids in zip(own, batch):
                other = base[len(nll)] if base is not None else None
                row_nll, row_kl, row_agree = compare(row, other, ids[1:])
                nll.append(row_nll)
                kl, agree = kl + row_kl, agree + row_agree
            if base is None:
                logits += list(own)
    return {"nll": nll, "kl": kl, "agree": agree, "tokens": rows.shape[0] * (rows.shape[1] - 1), "logits": logits}


def compare(own: Any, other: Any, targets: Any) -> tuple[float, float, int]:
    """Sums over one row. own, other: logits [L - 1, vocabulary]; targets: [L - 1]."""
    import torch

    nll, kl, agree = 0.0, 0.0, 0
    for start in range(0, len(own), CHUNK):
        part = slice(start, start + CHUNK)
        mine = torch.log_softmax(own[part].float(), dim=-1)
        nll -= float(mine.gather(-1, targets[part, None]).sum())
        if other is not None:
            theirs = torch.log_softmax(other[part].float(), dim=-1)
            kl += float((theirs.exp() * (theirs - mine)).sum())
            agree += int((own[part].argmax(-1) == other[part].argmax(-1)).sum())
    return nll, kl, agree


def summary(scored: dict[str, Any]) -> dict[str, float]:
    import math

    tokens = scored["tokens"]
    return {
        "perplexity": math.exp(sum(scored["nll"]) / tokens),
        "kl": scored["kl"] / tokens,
        "agree": scored["agree"] / tokens,
    }


@contextmanager
def step(name: str) -> Iterator[None]:
    """Time one step; a JSON line on standard output."""
    began = time.time()
    yield
    print(json.dumps({"step": name, "start": began, "end": time.time()}), flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
