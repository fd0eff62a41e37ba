"""What is written for TensorRT-LLM, and what its own files are taken for: at the documented boundary, no hardware."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from optpipe.backends.compilers import tensorrt_llm as compiler
from optpipe.backends.engines import files, tensorrt_llm, tensorrt_llm_bundle, tensorrt_llm_options, tensorrt_llm_run
from optpipe.backends.engines.tensorrt_llm import TensorRtLlm
from optpipe.backends.evaluators.client import from_logits
from optpipe.backends.loads import trtllm_bench
from optpipe.backends.loads.figures import figures
from optpipe.backends.loads.load import Load, Slo
from optpipe.errors import EnvironmentMissing
from optpipe.model.compat import Case, feasibility
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.records import Artifact, ModelFacts, to_json
from optpipe.toolchains import Image, Toolchain, get
from optpipe.toolchains.trtllm import builds, no_build
from optpipe.worker import Failure, Work
from tests.models import tiny_llama

H100, L4, A10, B200 = (named(name) for name in ("h100", "l4", "a10", "b200"))
AWQ = {"library": "modelopt", "method": "awq", "bits": 4, "group_size": 32}
STAND_IN = Path(__file__).parents[1] / "fakes" / "trtllm.py"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return facts_of_folder(tiny_llama(tmp_path / "m"))


# ---------------------------------------------------------------- the configuration


def test_settings_beat_engine_args_beat_the_target_one_key_at_a_time() -> None:
    args = {"kv_cache_config": {"host_cache_size": 5, "free_gpu_memory_fraction": 0.5}, "stream_interval": 4}
    target = TensorRtLlm(kv_cache_dtype="fp8", max_batch_size=8, engine_args=args)
    keys = tensorrt_llm.config(target, {"max_batch_size": 64, "kv_cache_config.free_gpu_memory_fraction": 0.8})
    assert keys["max_batch_size"] == 64 and keys["stream_interval"] == 4
    assert keys["kv_cache_config"] == {
        "dtype": "fp8",
        "enable_block_reuse": False,
        "free_gpu_memory_fraction": 0.8,
        "host_cache_size": 5,
    }
    assert tensorrt_llm.flags(keys) == keys, "what is nested already stays as it is"


def test_the_file_is_yaml_and_a_null_switches_graphs_off() -> None:
    keys = tensorrt_llm.config(TensorRtLlm(cuda_graphs=False), {})
    text = files.yaml_text(keys, tensorrt_llm.NOTES)
    assert text.startswith("# not run on hardware here") and files.read_yaml(text) == keys
    assert yaml.safe_load(text) == keys and keys["cuda_graph_config"] is None
    assert None not in tensorrt_llm.config(TensorRtLlm(), {}).values()


def test_an_engine_has_dtypes_and_graphs_built_in() -> None:
    target = TensorRtLlm(backend="tensorrt", dtype="float16", kv_cache_dtype="fp8", cuda_graphs=True)
    keys = tensorrt_llm.config(target, {})
    assert not {"dtype", "cuda_graph_config"} & keys.keys() and "dtype" not in keys["kv_cache_config"]


def test_every_key_that_is_written_or_tuned_is_one_of_the_release() -> None:
    target = TensorRtLlm("tensorrt_llm", "pytorch", "bfloat16", "nvfp4", 2, 512, 8, 1024, True, True)
    space = tensorrt_llm.search_space(H100, (2,))
    keys = tensorrt_llm.config(target, {name: values[0] for name, values in space.items()})
    assert tensorrt_llm_options.unknown_keys(target, keys) == ()
    old = TensorRtLlm(backend="tensorrt", max_model_len=512)
    assert tensorrt_llm_options.unknown_keys(old, tensorrt_llm.config(old, {})) == ()


def test_a_spec_asks_for_its_gpus_and_sends_no_statistics() -> None:
    spec = tensorrt_llm.spec("a@trt", TensorRtLlm(tensor_parallel_size=2), Artifact(Path("/m"), "sha256:1"), {}, H100)
    assert spec.needs.gpus == 2 and spec.environment["TRTLLM_NO_USAGE_STATS"] == "1"
    assert spec.config_text == files.yaml_text(spec.config)


WRONG = [
    ({"kv_cache_config": {"dtyp": "fp8"}}, "kv_cache_config has no key dtyp"),
    ({"kv_cache_config.dtype": "fp8"}, "is a key of the target itself"),
    ({"max_seq_len": 4096}, "is a key of the target itself"),
    ({"trust_remote_code": True}, "cannot be given"),
    ({"custom_tokenizer": "a.B"}, "runs code"),
    ({"quant_config": {"quant_algo": "FP8"}}, "the checkpoint says it"),
    ({"max_batchsize": 4}, "has no key max_batchsize"),
    ({"fast_build": True}, "has no key fast_build"),
]


@pytest.mark.parametrize(("args", "said"), WRONG)
def test_wrong_keys_are_refused_with_what_is_near(args: dict[str, Any], said: str) -> None:
    (found,) = tensorrt_llm.problems(TensorRtLlm(engine_args=args), "targets.trt", True)
    assert said in found.message and found.place.startswith("targets.trt.engine_args.") and found.hint


def test_settings_that_cannot_go_together_are_known() -> None:
    assert tensorrt_llm.infeasible({"max_num_tokens": 8, "max_batch_size": 16}, 4)
    assert tensorrt_llm.infeasible({"max_num_tokens": 512}, 1024)
    assert tensorrt_llm.infeasible({"max_num_tokens": 512, "enable_chunked_prefill": True}, 1024) is None


# ---------------------------------------------------------------- what loads where

LOADS = [
    (None, A10, ""),
    ({"method": "fp8"}, H100, ""),
    ({"method": "fp8"}, A10, "no kernel"),
    ({"method": "nvfp4"}, B200, ""),
    ({"method": "nvfp4"}, H100, "no kernel"),
    (AWQ, A10, ""),
    ({"method": "gptq", "bits": 4, "group_size": 32}, H100, "does not load integer weight-only"),
    ({"library": "gptqmodel", "method": "gptq", "bits": 4, "group_size": 32}, H100, "integer weight-only"),
    ({"library": "autoawq", "method": "awq", "bits": 4, "group_size": 32}, H100, "integer weight-only"),
    ({"method": "int8"}, H100, "takes a compressed-tensors INT8 W8A8 checkpoint for FP8"),
    ({"library": "modelopt", "method": "smoothquant"}, H100, "only as an engine built up to 1.2"),
]


@pytest.mark.parametrize(("scheme", "machine", "why"), LOADS)
def test_what_it_cannot_load_is_refused_in_the_plan(facts: ModelFacts, scheme: Any, machine: Any, why: str) -> None:
    refused = [no.reason for no in feasibility(Case(facts, scheme, {"engine": "tensorrt_llm"}, machine)).refused]
    assert (not refused) if not why else any(why in reason for reason in refused), refused


def test_a_kv_cache_needs_its_gpu(facts: ModelFacts) -> None:
    def refused(dtype: str, machine: Any) -> int:
        target = {"engine": "tensorrt_llm", "kv_cache_dtype": dtype}
        return len(feasibility(Case(facts, None, target, machine)).refused)

    assert (refused("fp8", A10), refused("fp8", L4), refused("nvfp4", H100), refused("nvfp4", B200)) == (1, 0, 1, 0)


def test_bundles_that_it_can_load_carry_a_configuration(facts: ModelFacts) -> None:
    load = {"concurrency": 16, "input_tokens": 20000}
    (text,) = tensorrt_llm_bundle.unmeasured(facts, {"method": "fp8"}, load).values()
    assert "# unmeasured" in text and "compute capability 8.9 or more" in text and "not run on hardware here" in text
    assert yaml.safe_load(text) == {"max_batch_size": 16, "max_num_tokens": 20000}
    assert tensorrt_llm_bundle.unmeasured(facts, {"method": "int8"}, load) == {}


# ---------------------------------------------------------------- which release


def test_the_release_decides_the_generation() -> None:
    assert [builds(v) for v in ("0.21.0", "1.0.0", "1.2.1", "1.3.0rc20", "1.3.0", "2.0")] == [True] * 3 + [False] * 3
    assert "trtllm-build ended with 1.3.0rc20" in no_build("1.3.0") and "trtllm-serve" in no_build("1.3.0")

    def settled(release: str, backend: Any = "auto") -> str:
        chain = Toolchain("tensorrt_llm", "interpreter", ("p",), {}, "f", {"tensorrt-llm": release})
        return tensorrt_llm.settled(TensorRtLlm(backend=backend), chain).backend

    assert (settled("1.2.1"), settled("1.3.0"), settled("1.2.1", "pytorch")) == ("tensorrt", "pytorch", "pytorch")


def test_it_is_found_by_its_command_on_path_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMissing, match="no trtllm-serve on PATH"):
        get("tensorrt_llm")
    command = tmp_path / "trtllm-serve"
    command.write_text("\x7fELF")
    command.chmod(0o755)
    with pytest.raises(EnvironmentMissing, match="no Python script"):
        get("tensorrt_llm")
    command.write_text(f"#!{sys.executable}\n")
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    chain = get("tensorrt_llm")
    assert chain.python == (sys.executable,)
    with pytest.raises(EnvironmentMissing, match="has no tensorrt-llm installed"):
        tensorrt_llm.refused(TensorRtLlm(), "targets.trt", chain, H100)


def test_an_image_is_asked_once_which_release_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    asked, runner = tmp_path / "asked", tmp_path / "run"
    told = json.dumps({**tensorrt_llm_options.shipped(), "version": "1.2.1"})
    runner.write_text(f"#!/bin/sh\necho \"$@\" >> '{asked}'\necho 'loading'\necho '{told}'\n")
    runner.chmod(0o755)
    image = f"trt@sha256:{'0' * 64}"
    chain = get("tensorrt_llm", {"tensorrt_llm": Image((str(runner), image))})
    for _ in range(2):
        assert tensorrt_llm.settled(TensorRtLlm(), chain).backend == "tensorrt"
    (line,) = asked.read_text().splitlines()
    assert line.startswith(f"{image} env ") and "TRTLLM_NO_USAGE_STATS=1" in line
    assert line.endswith("python3 -m optpipe.backends.engines.tensorrt_llm_options")
    assert "1.3.0rc20" not in str(tensorrt_llm.refused(TensorRtLlm(backend="tensorrt"), "t", chain, H100))


def words(tmp_path: Path, release: str, monkeypatch: pytest.MonkeyPatch, *, engine: bool) -> list[str]:
    """What the launcher would start."""
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    if engine:
        (model / "rank0.engine").touch()
    (tmp_path / "trtllm-serve").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tensorrt_llm_run, "release", lambda: release)
    monkeypatch.chdir(tmp_path)
    given = tensorrt_llm.argv(str(model), "w4@trt")[2:]
    filled = [{"{config}": "f.yaml", "{host}": "127.0.0.1", "{port}": "8000"}.get(word, word) for word in given]
    return tensorrt_llm_run.serve(tensorrt_llm_run.parsed(filled))


def test_the_command_of_1_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = words(tmp_path, "1.3.0", monkeypatch, engine=False)
    where = ["--host", "127.0.0.1", "--port", "8000", "--served_model_name", "w4@trt"]
    assert said[1:] == [str(tmp_path / "model"), "--backend", "pytorch", "--config", "f.yaml", *where]


def test_the_command_up_to_1_2_serves_an_engine_by_its_folder_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = words(tmp_path, "1.2.1", monkeypatch, engine=True)
    assert said[2:6] == ["--backend", "tensorrt", "--extra_llm_api_options", "f.yaml"]
    assert Path(said[1]).name == "w4@trt" and Path(said[1]).resolve() == (tmp_path / "model").resolve()
    assert said[said.index("--tokenizer") + 1] == str(tmp_path / "model")


def test_1_3_runs_no_engine_of_an_earlier_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(tensorrt_llm_run.Wrong, match="runs none: engines ended with"):
        words(tmp_path, "1.3.0", monkeypatch, engine=True)


# ---------------------------------------------------------------- what is built


def engine_folder(path: Path, **changed: Any) -> Path:
    path.mkdir()
    (path / "rank0.engine").touch()
    sizes = {"max_batch_size": 8, "max_num_tokens": 1024, "max_seq_len": 512} | changed
    (path / "config.json").write_text(json.dumps({"version": "1.2.1", "build_config": sizes}))
    return path


def test_an_engine_that_is_not_what_was_asked_for_fails(tmp_path: Path) -> None:
    chosen = compiler.Options(512, 8, 1024)
    assert compiler.check(engine_folder(tmp_path / "good"), chosen, "1.2.1")["max_seq_len"] == 512
    with pytest.raises(Failure, match="max_batch_size 4, not 8"):
        compiler.check(engine_folder(tmp_path / "small", max_batch_size=4), chosen, "1.2.1")
    with pytest.raises(Failure, match=r"of TensorRT-LLM 1\.2\.1, built by 1\.1\.0"):
        compiler.check(tmp_path / "good", chosen, "1.1.0")
    with pytest.raises(Failure, match=r"left no rank1\.engine"):
        compiler.check(tmp_path / "good", compiler.Options(512, 8, 1024, 2), "1.2.1")


@pytest.mark.parametrize("algorithm", ["FP8", "NVFP4", "W4A16_AWQ"])
def test_modelopts_formats_are_built_and_int8_is_not(tmp_path: Path, algorithm: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "modelopt"}}))
    told = tmp_path / "hf_quant_config.json"
    told.write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
    assert compiler.algorithm_of(tmp_path) == algorithm
    told.write_text(json.dumps({"quantization": {"quant_algo": "INT8_SQ"}}))
    with pytest.raises(Failure, match="no engine is built from INT8_SQ"):
        compiler.algorithm_of(tmp_path)
    told.unlink()
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "compressed-tensors"}}))
    with pytest.raises(Failure, match="ModelOpt's checkpoints, not from compressed-tensors"):
        compiler.algorithm_of(tmp_path)


def test_a_checkpoint_is_converted_rank_by_rank_with_what_modelopt_says(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m")
    told = {"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 128, "exclude_modules": ["lm_head"]}}
    (model / "hf_quant_config.json").write_text(json.dumps(told))
    chosen = compiler.Options(512, 8, 1024, 2, "bfloat16", "fp8")
    path = f"{ROOT}:{ROOT / 'tests' / 'fakes' / 'trtllm_site'}"
    argv = compiler.convert_command(model, tmp_path / "out", chosen)
    subprocess.run(argv, check=True, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"})
    made = json.loads((tmp_path / "out" / "config.json").read_text())
    assert made["mapping"] == {"world_size": 2, "tp_size": 2} and made["dtype"] == "bfloat16"
    quantization = made["quantization"]
    assert (quantization["quant_algo"], quantization["kv_cache_quant_algo"]) == ("W4A16_AWQ", "FP8")
    assert {path.name for path in (tmp_path / "out").glob("*.safetensors")} == {
        "rank0.safetensors",
        "rank1.safetensors",
    }


# ---------------------------------------------------------------- log-probabilities from logits


def test_logits_of_a_whole_prompt_give_its_log_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=(4, 10))
    ids = [1, 5, 3, 9]
    first, *rest = from_logits(logits.tolist(), ids)
    wanted = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert first is None
    for at, entry in enumerate(rest):
        assert entry[str(ids[at + 1])]["logprob"] == pytest.approx(wanted[at, ids[at + 1]])
        assert max(one["logprob"] for one in entry.values()) == pytest.approx(wanted[at].max())


def test_logits_without_what_was_in_the_cache_are_no_measurement() -> None:
    with pytest.raises(Failure, match=r"shape \(2, 10\) for 4 tokens") as failed:
        from_logits(np.zeros((2, 10)).tolist(), [1, 2, 3, 4])
    assert "enable_block_reuse" in str(failed.value.hint)


# ---------------------------------------------------------------- trtllm-bench

LOAD, SLO = Load(concurrency=4, input_tokens=16, output_tokens=5, requests=100), Slo(ttft_ms={"p90": 60})


def work_in(folder: Path, release: str, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A job's work with the stand-in commands of a release beside it."""
    bin_ = folder / "bin"
    bin_.mkdir()
    program = bin_ / "trtllm-bench"
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec "{sys.executable}" "{STAND_IN}" {release} trtllm-bench "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(trtllm_bench, "release", lambda: release)
    model, files_ = tiny_llama(folder / "model"), folder / "files"
    files_.mkdir()
    return Work({"model": model, "tokenizer": model}, {}, files_, 1, 1, folder)


def options(load: Load = LOAD) -> dict[str, Any]:
    return {**to_json(load), "seed": 1, "name": "w4@trt", "config": "max_batch_size: 8\n", "width": 1}


@pytest.mark.parametrize(("release", "built"), [("1.2.1", False), ("1.2.1", True), ("1.3.0", False)])
def test_trtllm_bench_gives_the_rows_of_any_load(
    tmp_path: Path, release: str, built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in takes the words of its release and no other, and reads every file that it is given."""
    work = work_in(tmp_path, release, monkeypatch)
    if built:
        (work.inputs["model"] / "rank0.engine").touch()
    done = trtllm_bench.run(options(), work)
    assert ("--engine_dir MODEL" in done["command"]) == built and str(tmp_path) not in done["command"]
    assert f"--backend {'tensorrt' if built else 'pytorch'}" in done["command"]
    assert f"{'--extra_llm_api_options' if builds(release) else '--config'} ./config.yaml" in done["command"]
    assert done["release"] == release and not done["unique_prompts"], "it warms up with what it measures"
    found = figures(done, LOAD, SLO)
    assert (found.requests, found.failures, found.concurrency) == (100, 0, 4)
    assert found.ttft_ms.p90 == pytest.approx(50) and found.tpot_ms.p50 == pytest.approx(10)
    assert found.ttft_ms.p99 is None, "too few requests for it"
    assert found.requests_per_s.value == pytest.approx(4, rel=0.05) and found.requests_per_s.ci95 is not None
    assert found.goodput_per_s.value == pytest.approx(found.requests_per_s.value)


def test_its_prompts_are_of_ordinary_tokens_distinct_and_the_same_for_a_seed(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "m")
    load = Load(concurrency=2, input_tokens=12, shared_prefix_tokens=4, requests=30)
    prompts = trtllm_bench.random_prompts(model, load, 7)
    told = json.loads((model / "tokenizer.json").read_text())
    special = {one["id"] for one in told["added_tokens"]}
    assert {len(one) for one in prompts} == {12} and len({tuple(one) for one in prompts}) == 30
    assert len({tuple(one[:4]) for one in prompts}) == 1
    assert not special & {token for one in prompts for token in one}
    assert prompts == trtllm_bench.random_prompts(model, load, 7) != trtllm_bench.random_prompts(model, load, 8)


def test_a_bench_that_fails_or_reports_something_else_is_a_failure_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = work_in(tmp_path, "1.3.0", monkeypatch)
    with pytest.raises(Failure, match=r"trtllm-bench ended with 1: .*Extra inputs are not permitted"):
        trtllm_bench.run({**options(), "config": "no_such_key: 1\n"}, work)
    trtllm_bench.run(options(), work)
    report, requests = tmp_path / "report.json", tmp_path / "requests.json"
    entries = trtllm_bench.read_entries(requests)
    told = json.loads(report.read_text())
    told["performance"]["system_output_throughput_tok_s"] *= 2
    report.write_text(json.dumps(told))
    with pytest.raises(Failure, match="its requests come to"):
        trtllm_bench.totals(report, entries)
    with pytest.raises(Failure, match="speaks of 100 requests, the other file of 99"):
        trtllm_bench.totals(report, entries[1:])
    for text, why in (('[{"id": 7, "start_timestamp": 0}]', "request 7 has no first_token"), ("[]", "no list of req")):
        requests.write_text(text)
        with pytest.raises(Failure, match=why):
            trtllm_bench.read_entries(requests)
    report.unlink()
    with pytest.raises(Failure, match=r"left no report\.json"):
        trtllm_bench.totals(report, entries)
