"""Stands for TensorRT-LLM's commands: `trtllm.py RELEASE trtllm-serve|trtllm-build|trtllm-bench ARGUMENTS...`.

Each takes the options of its release and no other, checks every file that it is given as the library does, and
obeys orders (see orders.py). Reports have the documented shape.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from optpipe.toolchains.trtllm import builds
from tests.fakes import orders, tiny_vllm

SHIPPED = Path(__file__).parents[2] / "optpipe" / "backends" / "engines" / "tensorrt_llm_options.json"
BUILT = ("max_batch_size", "max_num_tokens", "max_seq_len")


class Strict(argparse.ArgumentParser):
    """Takes whole option names only, and exits with 2 as click does."""

    def __init__(self, name: str) -> None:
        super().__init__(prog=name, allow_abbrev=False)

    def error(self, message: str) -> Any:
        sys.stderr.write(f"Error: No such option: {message}\n")
        sys.exit(2)


def fail(text: str) -> Any:
    sys.stderr.write(f"{text}\n")
    sys.exit(1)


# ---------------------------------------------------------------- trtllm-serve


def serve(release: str, words: list[str]) -> None:
    parser = Strict("trtllm-serve")
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", choices=("pytorch", "tensorrt"), required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path)
    if builds(release):
        parser.add_argument("--extra_llm_api_options", dest="config", type=Path, required=True)
    else:
        parser.add_argument("--config", type=Path, required=True)
        parser.add_argument("--served_model_name", required=True)
    said = parser.parse_args(words)
    keys = yaml.safe_load(said.config.read_text())
    check_keys(keys, said.backend)
    if os.environ.get("TRTLLM_NO_USAGE_STATS") != "1":
        fail("usage statistics would be sent")
    name = said.model.name if builds(release) else said.served_model_name
    folder = engine(said.model, release, said.tokenizer) if said.backend == "tensorrt" else checkpoint(said.model)
    server = Tensor(said.port, name, keys, folder)
    shared = tiny_vllm.shared_memory(said.port)
    orders.obey("engine", server.who)
    signal.signal(signal.SIGTERM, lambda *_: tiny_vllm.end(shared, said.port))
    server.serve_forever()


def check_keys(keys: dict[str, Any], backend: str) -> None:
    """As pydantic with `extra="forbid"`."""
    known = json.loads(SHIPPED.read_text())[backend]
    for key, value in keys.items():
        below = set(value) - set(known.get(key) or value) if isinstance(value, dict) else ()
        if key not in known or below:
            named = "TorchLlmArgs" if backend == "pytorch" else "TrtLlmArgs"
            fail(f"1 validation error for {named}\n{key}\n  Extra inputs are not permitted {sorted(below)}")
    if keys.get("kv_cache_config", {}).get("dtype", "auto") not in ("auto", "fp8", "nvfp4"):
        fail("kv_cache_config.dtype")


def checkpoint(model: Path) -> Path:
    """A Hugging Face folder that the PyTorch backend reads, by its `quantization_config`."""
    stored = json.loads((model / "config.json").read_text()).get("quantization_config")
    if stored is None or (model / "hf_quant_config.json").is_file():
        return model
    if stored["quant_method"] != "compressed-tensors":
        fail(f"KeyError: no quantization that is known as {stored['quant_method']}")
    (group,) = stored["config_groups"].values()
    weights, inputs = group["weights"], group["input_activations"]
    if inputs is None:
        fail("TypeError: 'NoneType' object is not subscriptable")
    good = {(8, "channel", "token"), (4, "tensor_group", "tensor_group")}
    if (weights["num_bits"], weights["strategy"], inputs["strategy"]) not in good:
        fail(f"ValueError: Unsupported quant_bits: {weights['num_bits']}")
    return model  # the type is not looked at: 8 bits are FP8


def engine(model: Path, release: str, tokenizer: Path | None) -> Path:
    """The checkpoint that an engine of this release was built from."""
    told = json.loads((model / "config.json").read_text())
    if told["version"] != release:
        fail(f"The engine was built with TensorRT-LLM {told['version']}, this is {release}")
    if tokenizer is None or not (tokenizer / "tokenizer.json").is_file():
        fail("an engine needs --tokenizer")
    folder = Path(tempfile.mkdtemp())
    shutil.copyfile(model / "rank0.engine", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(told["pretrained_config"]["hugging_face"]))
    return folder


class Tensor(tiny_vllm.Tiny):
    def __init__(self, port: int, name: str, config: dict[str, Any], model: Path) -> None:
        super().__init__(port, name, config, model)
        self.RequestHandlerClass = Answers


class Answers(tiny_vllm.Answers):
    """Completions without vLLM's own words: `prompt_logprobs` is a field that is not permitted."""

    def completion_of(self, body: dict[str, Any], ids: list[int], answer: list[int], shift: float) -> dict[str, Any]:
        told = super().completion_of({k: v for k, v in body.items() if k != "prompt_logprobs"}, ids, answer, shift)
        if body.get("return_context_logits"):
            told["choices"][0]["context_logits"] = self.server.model.logits(np.array(ids)).tolist()
        return told

    def json(self, status: int, value: Any) -> None:
        super().json(status, value)


# ---------------------------------------------------------------- trtllm-build


def build(release: str, words: list[str]) -> None:
    parser = Strict("trtllm-build")
    parser.add_argument("--checkpoint_dir", type=Path, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    for name in (*BUILT, "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--gather_context_logits", action="store_true")
    said = parser.parse_args(words)
    orders.obey("compile", "trtllm-build")
    pretrained = json.loads((said.checkpoint_dir / "config.json").read_text())
    if not said.gather_context_logits:
        fail("without context logits nothing can be compared")
    said.output_dir.mkdir(parents=True, exist_ok=True)
    for rank in range(pretrained["mapping"]["world_size"]):
        shutil.copyfile(said.checkpoint_dir / f"rank{rank}.safetensors", said.output_dir / f"rank{rank}.engine")
    sizes = {name: getattr(said, name) for name in BUILT}
    config = {"version": release, "pretrained_config": pretrained, "build_config": sizes}
    (said.output_dir / "config.json").write_text(json.dumps(config))


# ---------------------------------------------------------------- trtllm-bench


def bench(release: str, words: list[str]) -> None:
    """`trtllm-bench --model N --model_path D throughput ...`: a second for each request, 10 ms for each token."""
    at = words.index("throughput")
    outer, inner = Strict("trtllm-bench"), Strict("trtllm-bench throughput")
    outer.add_argument("--model", required=True)
    outer.add_argument("--model_path", type=Path, required=True)
    inner.add_argument("--backend", choices=("pytorch", "tensorrt"), required=True)
    inner.add_argument("--config" if not builds(release) else "--extra_llm_api_options", dest="config", type=Path)
    for name in ("--dataset", "--report_json", "--request_json"):
        inner.add_argument(name, type=Path, required=True)
    for name in ("--concurrency", "--num_requests", "--warmup"):
        inner.add_argument(name, type=int, required=True)
    inner.add_argument("--streaming", action="store_true")
    inner.add_argument("--engine_dir", type=Path)
    inner.add_argument("--tp", type=int)
    model, said = outer.parse_args(words[:at]), inner.parse_args(words[at + 1 :])
    keys = yaml.safe_load(said.config.read_text())
    check_keys(keys, said.backend)
    if (said.engine_dir is None) != (said.tp == keys.get("tensor_parallel_size", 1)):
        fail("a checkpoint wants its parallelism, an engine its folder")
    asked = [json.loads(line) for line in said.dataset.read_text().splitlines()]
    if not said.streaming or any(set(one) != {"task_id", "input_ids", "output_tokens"} for one in asked):
        fail("ValueError: dataset")
    records = [record(number, one, said.concurrency) for number, one in enumerate(asked[: said.num_requests])]
    said.request_json.write_text(json.dumps(records))
    said.report_json.write_text(json.dumps(report(release, model, said, records)))


def record(number: int, asked: dict[str, Any], concurrency: int) -> dict[str, Any]:
    """One entry of --request_json: times in nanoseconds."""
    tokens = asked["output_tokens"]
    start = (number // concurrency) * 1_000_000_000 + (number % concurrency) * 1_000_000
    first, end = start + 50_000_000, start + 50_000_000 + 10_000_000 * (tokens - 1)
    return {
        "id": number,
        "num_input_tokens": len(asked["input_ids"]),
        "error_tokens": 0,
        "start_timestamp": start,
        "first_token_timestamp": first,
        "end_timestamp": end,
        "decode_iteration": tokens - 1,
        "num_total_output_tokens": tokens,
        "time_to_first_token": first - start,
        "end_to_end_latency": end - start,
        "output": "words",
        "output_tokens": tokens,
    }


def report(release: str, model: Any, said: Any, records: list[dict[str, Any]]) -> dict[str, Any]:
    """What `ReportUtility.get_statistics_dict` makes."""
    seconds = (max(r["end_timestamp"] for r in records) - min(r["start_timestamp"] for r in records)) / 1e9
    tokens = sum(r["output_tokens"] for r in records)
    latencies = [r["end_to_end_latency"] / 1e6 for r in records]
    ttft = [r["time_to_first_token"] / 1e6 for r in records]

    def spread(values: list[float]) -> dict[str, float]:
        named = {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 95, 99)}
        return named | {"minimum": min(values), "maximum": max(values), "average": sum(values) / len(values)}

    return {
        "engine": {"model": model.model, "model_path": str(model.model_path), "engine_dir": str(said.engine_dir),
                   "version": release, "backend": "Pytorch", "dtype": "bfloat16", "kv_cache_dtype": None,
                   "quantization": None},
        "machine": {"name": "NVIDIA H100", "memory.total": 79.6, "clocks.mem": 2.6},
        "world_info": {"tp_size": 1, "pp_size": 1, "ep_size": 1, "world_size": 1, "max_batch_size": 256,
                       "max_num_tokens": 8192, "scheduling_policy": "GUARANTEED_NO_EVICT",
                       "kv_cache_percentage": 0.9, "issue_rate": 1.0},
        "request_info": {"num_requests": len(records), "avg_num_concurrent_requests": said.concurrency,
                         "avg_input_length": 4.0, "avg_output_length": tokens / len(records)},
        "performance": {"total_latency_ms": 1e3 * seconds, "avg_request_latency_ms": sum(latencies) / len(latencies),
                        "request_throughput_req_s": len(records) / seconds,
                        "system_output_throughput_tok_s": tokens / seconds,
                        "system_total_throughput_tok_s": tokens / seconds,
                        "output_throughput_per_user_tok_s": 10.0,
                        "output_throughput_per_gpu_tok_s": tokens / seconds,
                        "request_latency_percentiles_ms": spread(latencies)},
        "streaming_metrics": {"token_output_speed_tok_s": 100.0, "avg_ttft_ms": sum(ttft) / len(ttft),
                              "avg_tpot_ms": 10.0, "tpot_percentiles": spread([10.0]),
                              "ttft_percentiles": spread(ttft), "gen_tps_percentiles": spread([100.0])},
        "dataset": {"isl_stats": {}, "osl_stats": {}, "num_requests": len(records)},
    }  # fmt: skip


COMMANDS = {"trtllm-serve": serve, "trtllm-build": build, "trtllm-bench": bench}

if __name__ == "__main__":
    time.sleep(0)
    COMMANDS[sys.argv[2]](sys.argv[1], sys.argv[3:])
