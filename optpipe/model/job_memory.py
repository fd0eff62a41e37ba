"""Peak memory of quantizing and of scoring: pure arithmetic on facts and schemes, constants as they were measured.

Measured: resident memory of the worker, llm-compressor 0.14 with torch 2.13 and transformers 5 on x86-64, one thread,
SmolLM2-135M (269 MB) and its first 3 layers (78 MB), November 2026. Weights are mapped from their file and stay
mapped, so they count once, as read.
"""

from __future__ import annotations

import re

from optpipe.model.memory import show
from optpipe.model.schemes import PLAIN_BYTES, data_free, linear_bytes, parts, untied_bytes, weight_bytes
from optpipe.records import Estimated, Json, ModelFacts

QUANTIZER_LIBRARIES = 475_000_000
"""torch, transformers and llm-compressor (or ModelOpt), with a model of no size."""

OTHER_LIBRARIES = {
    "gptqmodel": 537_000_000,
    "autogptq": 458_000_000,
    "autoawq": 318_000_000,
}
"""The same of another library, from what is left of its peaks when its own arithmetic is taken off. On the 3 layers:
GPTQModel 753 MB (W4), 762 (asymmetric), 778 (W8) with 8 x 256 tokens; auto-gptq 666 MB with 16 x 256; autoawq 634 and
877 MB with 256 and 4096 tokens. On the whole model auto-gptq 1214 MB, GPTQModel 1210 MB with 8 x 256."""

REWRITTEN = {
    "llmcompressor gptq": 0.8,
    "llmcompressor awq": 0.9,
    "autogptq gptq": 1.87,
    "autoawq awq": 0.81,
    "gptqmodel gptq": 1.25,
    "modelopt awq": 3.1,
}
"""Copies of the linear layers in bf16 that lie beside the mapped file in the end. llm-compressor's GPTQ leaves what it
has rounded in memory of its own, its AWQ what it has scaled (1060 and 1033 MB with 16 rows of 256 and of 512 tokens,
1252 MB with 4096 tokens, all of the whole model). auto-gptq writes what it has rounded into new memory and packs after
the last layer (from 666 and 1214 MB); autoawq scales in place, in pages of its own (634 MB on 3 layers, 711 on 9; all
30 take it longer than was waited for); ModelOpt's AWQ keeps what it tries for every layer until the last row has passed
(697 MB on the 3 layers, 1486 on all, read shortly before it was done)."""

CLIP_ROWS, CLIP_TOKENS, CLIP_COPIES = (256, 64), 512, 2
"""Output channels (as many as divide a layer's, the first that does) times tokens for which autoawq multiplies every
input by its weight at once while it looks where to clip, in bf16 (0.2.9, _compute_best_clip): 3.8 GB for a layer with
14,336 inputs; and two such products at once, as 634 and 877 MB say."""

SAVING, SAVED = 43_000_000, 1.3
"""What saving takes at any size, and of the packed weights, which lie beside the base's until they are written: INT8 of
the two models 609 and 927 MB in all."""

BATCH_TOKENS = {"awq": 2048, "awq-gptq": 2048}
"""Tokens that pass the model at once, where not one row after another; their logits exist at the end of each pass."""

WORK = {"gptq": 35_000_000, "smoothquant": 75_000_000, "awq": 60_000_000, "awq-gptq": 30_000_000}
"""The rest of a calibrating method's peak: 702 MB (16 x 512 tokens) and 836 MB (4 x 256) for GPTQ, 724 MB for
SmoothQuant, 892 MB (8192 tokens) and 1088 MB (2048) for AWQ; more in benchmarks/results/methods.json."""

LEARNED = 14
"""float32 activations of the widest layer that AutoRound keeps for its gradients, for each token of a step."""

ROTATED = 21
"""Bytes an entry of the embeddings while SpinQuant rotates them, in float64 (1210 MB in all on the 3 layers)."""

SCORER_LIBRARIES = 438_000_000
"""torch, transformers, compressed-tensors: 733 MB at the peak less SmolLM2's 269 MB and the logits of one block."""


LAYER = re.compile(r"(?:[^.\d][^.]*\.)+?\d+\.")
"""The beginning of a name as far as its decoder layer: experts are numbered too, behind it."""


def quantize_memory(facts: ModelFacts, scheme: Json, samples: int, length: int) -> Estimated:
    """Peak memory of a quantize job over `samples` rows of `length` tokens: while it calibrates or while it saves."""
    packed = sum(linear_bytes(layout, out, inputs) for layout, each in parts(facts, scheme) for _, out, inputs in each)
    base = facts.parameters * PLAIN_BYTES
    saved = SAVING + int(SAVED * packed)
    work = calibration_memory(facts, scheme, samples, length)
    if scheme.get("method") == "spinquant":
        work = max(work, ROTATED * facts.vocabulary * facts.hidden_size)
    what, most = ("calibration", work) if work > saved else ("packed copy", saved)
    untied = untied_bytes(facts, scheme)
    libraries = OTHER_LIBRARIES.get(str(scheme.get("library")), QUANTIZER_LIBRARIES)
    linears = sum(out * inputs for _, each in parts(facts, scheme) for _, out, inputs in each)
    again = int(REWRITTEN.get(f"{scheme.get('library')} {scheme.get('method')}", 0.0) * PLAIN_BYTES * linears)
    how = f"libraries {show(libraries)}, model {show(base + untied)}, {what} {show(most)}"
    how += f", weights again {show(again)}" if again else ""
    return Estimated(libraries + base + untied + most + again, "bytes", how)


def held_memory(facts: ModelFacts, scheme: Json, samples: int, length: int) -> int:
    """What a quantize job cannot do without: its peak less the mapped weights, which go where memory is short."""
    return int(quantize_memory(facts, scheme, samples, length).value) - facts.parameters * PLAIN_BYTES


def calibration_memory(facts: ModelFacts, scheme: Json, samples: int, length: int) -> int:
    """Hidden states of every row before and after a layer, the logits of one pass, and one layer's work."""
    method = str(scheme.get("method"))
    if not samples or data_free(scheme):
        return 0
    if scheme.get("library") == "modelopt":  # whole passes of one row: nothing is kept of it but its ranges
        search = WORK["awq"] + layer_copies(facts) if method == "awq" else 0
        return PLAIN_BYTES * length * facts.vocabulary + search
    tokens = samples * length
    if method == "awq":
        tokens = min(tokens, int(scheme.get("max_tokens", tokens)))
    if scheme.get("library") in ("autogptq", "autoawq"):
        return legacy_memory(facts, scheme, tokens)
    at_once = min(tokens, max(length, BATCH_TOKENS.get(method, 0)))
    states = 2 * PLAIN_BYTES * tokens * facts.hidden_size
    learned = 0
    if method == "autoround":
        learned = LEARNED * 4 * facts.intermediate_size * length * min(samples, int(scheme.get("batch", 8)))
    return states + PLAIN_BYTES * at_once * facts.vocabulary + layer_work(facts, method) + learned


def legacy_memory(facts: ModelFacts, scheme: Json, tokens: int) -> int:
    """Hidden states before and after a layer; the model's head is never asked. auto-gptq makes Hessians; autoawq takes
    all tokens through a block at once, keeps the inputs of its linear layers, a copy of its weights, and what clipping
    multiplies out."""
    states = 2 * PLAIN_BYTES * tokens * facts.hidden_size
    if scheme.get("library") == "autogptq":
        return states + WORK["gptq"] + hessian_bytes(facts)
    layer = largest_layer(facts)
    inputs = PLAIN_BYTES * tokens * (sum(ins for _, _, ins in layer) + 4 * facts.intermediate_size)
    return states + inputs + WORK["awq"] + layer_copies(facts) // 4 + clipping_bytes(scheme, layer, tokens)


def clipping_bytes(scheme: Json, layer: list[tuple[str, int, int]], tokens: int) -> int:
    """The largest product of inputs and weights that autoawq makes at once; queries and keys are not clipped."""
    if not scheme.get("clip", True):
        return 0
    seen = -(-tokens // max(1, tokens // CLIP_TOKENS))  # every so many, beginning with the first
    clipped = [(out, ins) for name, out, ins in layer if not name.endswith(("q_proj", "k_proj"))]
    rows = {out: next((rows for rows in CLIP_ROWS if out % rows == 0), out) for out, _ in clipped}
    return max((CLIP_COPIES * PLAIN_BYTES * rows[out] * seen * ins for out, ins in clipped), default=0)


def layer_work(facts: ModelFacts, method: str) -> int:
    """Float32 Hessians, or copies where scales are searched; gradients and the best so far where it is learned."""
    copies = {"nvfp4": 0, "fp8": 0, "awq": 1, "awq-gptq": 1, "autoround": 3}.get(method)
    own = WORK.get(method, WORK["gptq"])
    return own + (hessian_bytes(facts) if copies is None else copies * layer_copies(facts))


def hessian_bytes(facts: ModelFacts) -> int:
    """float32 Hessians of one layer, and three more of the largest while it is inverted."""
    sizes = [inputs for _, _, inputs in largest_layer(facts)] or [facts.hidden_size]
    return 4 * (sum(size * size for size in sizes) + 3 * max(sizes) ** 2)


def layer_copies(facts: ModelFacts) -> int:
    """Two float32 copies of one layer's weights."""
    return 8 * sum(out * inputs for _, out, inputs in largest_layer(facts))


def largest_layer(facts: ModelFacts) -> list[tuple[str, int, int]]:
    """The linear layers of the decoder layer that has most weights: a mixture's first may have no experts."""
    layers: dict[str, list[tuple[str, int, int]]] = {}
    for linear in facts.linears:
        if found := LAYER.match(linear[0]):
            layers.setdefault(found[0], []).append(linear)
    return max(layers.values(), key=lambda layer: sum(out * inputs for _, out, inputs in layer), default=[])


def score_memory(facts: ModelFacts, scheme: Json | None, tokens: int, block: int) -> Estimated:
    """Peak memory of scoring `tokens` tokens in blocks: the base's logits on all of them are mapped from their file.

    Weight-only layers are there packed and once more in bf16; the kernel takes mapped pages back where memory is short.
    """
    plain = sum(
        PLAIN_BYTES * out * inputs
        for layout, each in parts(facts, scheme)
        if layout.activation_bits != 8
        for _, out, inputs in each
    )
    weights = weight_bytes(facts, scheme) if scheme else facts.parameters * PLAIN_BYTES
    logits = 2 * facts.vocabulary * (tokens if scheme else block)
    how = f"libraries {show(SCORER_LIBRARIES)}, model {show(weights + plain)}, logits {show(logits)}"
    return Estimated(SCORER_LIBRARIES + weights + plain + logits, "bytes", how)
