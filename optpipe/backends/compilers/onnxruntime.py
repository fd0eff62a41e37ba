"""The `compile-onnxruntime` job: a checkpoint to an ONNX graph for CPUs, by onnxruntime-genai's model builder.

Runs in the onnxruntime toolchain; standard library only at import. input: `model` (the base, GPTQ's own format, or
compressed-tensors W4A16, which is repacked to GPTQ's format without changing a value). files: model.onnx with its
data, genai_config.json, and the checkpoint's own tokenizer and configuration.

The builder ignores option names that it does not know, so the nodes of the graph are counted: a linear layer that
was left alone, or a head that was quantized unasked (logits 8 % off), is a failure.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json
    from optpipe.worker import Work

REVISION = 1
"""Raised when results of this file or of `repack.py` change."""

HEAD, EMBEDDING = "/lm_head/MatMul", "/model/embed_tokens/Gather"
OWN_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("chat_template.jinja", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"),
)
LAST_LINES = 6


@dataclass(frozen=True)
class Options:
    """What the builder is told; block size and symmetry are those of its own quantizer, for the base alone."""

    precision: str = "fp32"
    block_size: int = 32
    symmetric: bool = True
    accuracy_level: int = 1
    quantize_head: bool = False


def run(options: Json, work: Work) -> Json:
    """Build, check the graph, put the checkpoint's own files beside it."""
    chosen = Options(**options)
    model = work.inputs["model"]
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    stored = config.get("quantization_config")
    source = readable(model, stored, work)
    work.out.mkdir(parents=True, exist_ok=True)
    argv = command(chosen, source, work.out, work.folder / "cache", quantized=stored is not None)
    work.progress(0, 2, "building the graph")
    build(argv, work)
    shutil.rmtree(work.folder / "cache", ignore_errors=True)
    own_files(model, work.out)
    work.progress(1, 2, "counting its nodes")
    nodes = graph(work.out / "model.onnx")
    problem = unexpected(nodes, chosen, int(config["num_hidden_layers"]), quantized=stored is not None)
    if problem:
        raise Failure(f"the graph is not what was asked for: {problem}", hint="see the builder's words in the log")
    told = json.loads((work.out / "genai_config.json").read_text(encoding="utf-8"))
    return {
        "nodes": {kind: len(found) for kind, found in sorted(nodes.items())},
        "repacked": source != model,
        "limits": {"max_model_len": int(told["model"]["context_length"])},
        "command": " ".join(word.replace(str(work.folder), ".").replace(str(model), "MODEL") for word in argv[1:]),
    }


def readable(model: Path, stored: Json | None, work: Work) -> Path:
    """The checkpoint in a format that the builder reads."""
    method = (stored or {}).get("quant_method")
    if method in (None, "gptq"):
        return model
    if method == "compressed-tensors":
        from optpipe.backends.compilers.repack import to_gptq

        return to_gptq(model, stored or {}, work.folder / "gptq")
    raise Failure(f"the builder is not given {method} checkpoints", hint="compile the base, or a W4A16 checkpoint")


def command(chosen: Options, model: Path, out: Path, cache: Path, *, quantized: bool) -> list[str]:
    """The builder's command line. `accuracy_level` and what is left alone are always said: the defaults round
    activations to 8 bits and quantize the head, and from 4 bits on the embedding."""
    precision = "int4" if quantized else chosen.precision
    alone = EMBEDDING if chosen.quantize_head else f"{HEAD},{EMBEDDING}"
    extra = [f"accuracy_level={chosen.accuracy_level}", f"nodes_to_exclude={alone}", "hf_token=false"]
    if precision != "fp32" and not quantized:
        extra += [f"block_size={chosen.block_size}", f"is_symmetric={str(chosen.symmetric).lower()}"]
    words = ["-m", "onnxruntime_genai.models.builder", "-i", str(model), "-o", str(out)]
    return [sys.executable, *words, "-p", precision, "-e", "cpu", "-c", str(cache), "--extra_options", *extra]


def build(argv: list[str], work: Work) -> None:
    """Run the builder; what it says goes to the job's log."""
    log = work.folder / "builder.log"
    with log.open("wb") as file:
        ended = subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, cwd=work.folder, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(text)
    if ended.returncode:
        last = " | ".join(text.strip().splitlines()[-LAST_LINES:])
        raise Failure(f"the model builder ended with {ended.returncode}: {last}", transient=ended.returncode < 0)


def own_files(model: Path, out: Path) -> None:
    """The checkpoint's own tokenizer and configuration in place of what the builder wrote anew."""
    for name in OWN_FILES:
        if (model / name).is_file():
            shutil.copyfile(model / name, out / name)


# ---------------------------------------------------------------- the graph


def graph(path: Path) -> dict[str, list[Json]]:
    """The nodes by kind: {"name", "bits", "block_size", "accuracy_level"} of each, where it has them."""
    import onnx

    loaded = onnx.load(str(path), load_external_data=False)
    found: dict[str, list[Json]] = {}
    for node in loaded.graph.node:
        found.setdefault(node.op_type, []).append({"name": node.name, **attributes(node)})
    return found


def attributes(node: Any) -> Json:
    wanted = {"bits", "block_size", "accuracy_level"}
    return {one.name: int(one.i) for one in node.attribute if one.name in wanted}


def unexpected(nodes: dict[str, list[Json]], chosen: Options, layers: int, *, quantized: bool) -> str | None:
    """What is in the graph that should not be, or the other way round; None where all is as asked."""
    plain, packed = nodes.get("MatMul", []), nodes.get("MatMulNBits", [])
    attention = len(nodes.get("GroupQueryAttention", [])) + len(nodes.get("MultiHeadAttention", []))
    if attention != layers:
        return f"{attention} attention nodes for {layers} layers"
    if nodes.get("GatherBlockQuantized"):
        return f"the embedding is quantized ({nodes['GatherBlockQuantized'][0]['name']})"
    if chosen.precision == "fp32" and not quantized:
        return f"{len(packed)} quantized MatMuls in a graph of float32" if packed else None
    left = [node["name"] for node in plain if chosen.quantize_head or node["name"] != HEAD]
    if left:
        return f"{len(left)} MatMuls are not quantized, the first is {left[0]}"
    if not chosen.quantize_head and not any(node["name"] == HEAD for node in plain):
        return f"{HEAD} is not among the MatMuls that were left alone"
    if len(packed) < layers:
        return f"{len(packed)} quantized MatMuls for {layers} layers"
    levels = Counter(node.get("accuracy_level", 0) for node in packed)
    if set(levels) != {chosen.accuracy_level}:
        return f"accuracy levels {dict(levels)}, not {chosen.accuracy_level}"
    return None
