"""What is written for vLLM: the configuration file, the command, and what is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from optpipe.backends.engines import files, vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.engines.vllm_options import check, installed_options, lacking
from optpipe.errors import EnvironmentMissing
from optpipe.records import Artifact, Hardware, Json
from optpipe.toolchains import Toolchain

CPU = Hardware("laptop", "cpu", 8, 16 << 30, "x86_64 avx2")
GPU = Hardware("server", "cpu", 64, 256 << 30, "x86_64", gpu="H200", gpus=4, gpu_memory_bytes=141 << 30)
OPTIONS: dict[str, Json] = {
    "max-num-seqs": {"names": [], "negative": False, "choices": [], "takes": "one"},
    "enable-prefix-caching": {"names": [], "negative": True, "choices": [], "takes": "nothing"},
    "disable-log-stats": {"names": [], "negative": False, "choices": [], "takes": "nothing"},
    "gpu-memory-utilization": {"names": ["device-memory"], "negative": False, "choices": [], "takes": "one"},
    "scheduling-policy": {"names": [], "negative": False, "choices": ["fcfs", "priority"], "takes": "one"},
    "compilation-config": {"names": [], "negative": False, "choices": [], "takes": "one"},
}


def test_a_false_flag_is_written_as_its_negative() -> None:
    """`enable-prefix-caching: false` would be dropped without a word."""
    flat = vllm.config(Vllm(), {"enable_prefix_caching": False, "max_num_seqs": 8}, CPU)
    assert flat["no-enable-prefix-caching"] is True and "enable-prefix-caching" not in flat
    assert flat["max-num-seqs"] == 8


def test_nothing_is_written_as_null() -> None:
    """A null ends vLLM with exit code 2."""
    flat = vllm.config(Vllm(), {"max_num_batched_tokens": None}, GPU)
    assert None not in flat.values() and "max-num-batched-tokens" not in flat
    assert "quantization" not in flat and "max-model-len" not in flat


def test_a_cpu_gets_bfloat16_eager_and_a_bounded_cache() -> None:
    flat = vllm.config(Vllm(), {}, CPU)
    assert (flat["dtype"], flat["enforce-eager"], flat["kv-cache-memory-bytes"]) == ("bfloat16", True, 1 << 30)
    assert vllm.config(Vllm(dtype="float32"), {}, CPU)["dtype"] == "float32"


def test_a_gpu_keeps_vllms_own_choices() -> None:
    flat = vllm.config(Vllm(), {}, GPU)
    assert flat == {"dtype": "auto", "kv-cache-dtype": "auto"}


def test_settings_beat_engine_args_beat_the_target() -> None:
    target = Vllm(engine_args={"max_num_seqs": 4, "seed": 3})
    flat = vllm.config(target, {"max-num-seqs": 16}, GPU)
    assert (flat["max-num-seqs"], flat["seed"]) == (16, 3)


def test_the_file_reads_back_as_it_was(tmp_path: Path) -> None:
    args = {"override-generation-config": {"stop": "ü: #"}, "cudagraph-capture-sizes": [1, 2], "x": "no", "y": 0.9}
    flat = vllm.config(Vllm(engine_args=args), {}, CPU)
    assert yaml.safe_load(files.yaml_text(flat)) == flat
    assert yaml.safe_load(files.yaml_text({})) == {}


def test_the_command_names_the_file_in_two_words_and_the_place_last() -> None:
    words = vllm.argv("/m", "w4@vllm")
    assert words[words.index("--config") + 1] == "{config}"
    assert words[words.index("serve") + 1] == "/m"
    assert {"{host}", "{port}", "w4@vllm"} <= set(words)


def test_an_engine_on_a_cpu_gets_its_threads_and_no_telemetry() -> None:
    env = vllm.environment(Vllm(), {"max_num_seqs": 8, vllm.IN_PROCESS: "0"}, CPU, threads=3)
    assert env["OMP_NUM_THREADS"] == "3" and env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["VLLM_NO_USAGE_STATS"] == "1"
    assert env[vllm.IN_PROCESS] == "0" and "max_num_seqs" not in env
    assert "OMP_NUM_THREADS" not in vllm.environment(Vllm(), {}, GPU)


def test_only_an_eager_engine_on_a_cpu_is_kept_from_compiling() -> None:
    assert vllm.environment(Vllm(), {}, CPU)["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in vllm.environment(Vllm(enforce_eager=False), {}, CPU)
    assert "TORCHDYNAMO_DISABLE" not in vllm.environment(Vllm(enforce_eager=True), {}, GPU)


def test_a_tuned_variable_is_in_the_environment_and_not_in_the_file() -> None:
    model = Artifact(Path("/m"), "sha256:1")
    spec = vllm.spec("int8@vllm", Vllm(), model, {"max_num_seqs": 8, vllm.IN_PROCESS: "0"}, CPU)
    assert spec.config["max-num-seqs"] == 8 and not any(name.isupper() for name in spec.config)
    assert f"{vllm.IN_PROCESS}=0\n" in files.env_text(spec.environment)


def test_what_is_promising_is_in_the_space() -> None:
    for hardware in (CPU, GPU):
        space = vllm.search_space(hardware, ())
        for settings in vllm.promising(hardware):
            assert all(value in space[name] for name, value in settings.items())


def test_a_spec_asks_for_the_gpus_of_its_parallelism() -> None:
    model = Artifact(Path("/m"), "sha256:1")
    assert vllm.spec("a", Vllm(), model, {"tensor_parallel_size": 2}, GPU).needs.gpus == 2
    on_cpu = vllm.spec("a", Vllm(), model, {}, CPU, threads=2)
    assert (on_cpu.needs.gpus, on_cpu.needs.cpus, on_cpu.toolchain) == (0, 2, "vllm-cpu")
    assert on_cpu.config_text == files.yaml_text(on_cpu.config)


def test_settings_that_vllm_would_refuse_together_are_known() -> None:
    assert vllm.infeasible({"max_num_seqs": 64, "max_num_batched_tokens": 32}, 128)
    assert vllm.infeasible({"enable_chunked_prefill": False, "max_num_batched_tokens": 64}, 128)
    assert vllm.infeasible({"enable_chunked_prefill": True, "max_num_batched_tokens": 64}, 128) is None
    assert vllm.infeasible({}, 128) is None


def test_a_compiled_target_on_a_cpu_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "g++" in str(vllm.compiler_missing(Vllm(enforce_eager=False), CPU))
    assert vllm.compiler_missing(Vllm(), CPU) is None
    assert vllm.compiler_missing(Vllm(enforce_eager=False), GPU) is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"max_num_seq": 8}, "no option --max-num-seq"),
        ({"port": 80}, "optpipe sets it"),
        ({"middleware": "evil.module"}, "runs code"),
        ({"kv_transfer_config.kv_connector_module_path": "evil"}, "runs code"),
        ({"api_key": "secret"}, "secrets come from the environment"),
        ({"load_format": "pt"}, "safetensors"),
        ({"kv-cache-dtype": "fp8"}, "a key of the target itself"),
        ({"enable_prefix_caching": "yes"}, "'yes' is not true or false"),
        ({"disable_log_stats": False}, "switched on only"),
        ({"max_num_seqs": True}, "takes a value"),
        ({"scheduling-policy": "fifo"}, "'fifo' is not a choice"),
    ],
)
def test_engine_args_are_refused_with_their_place(args: Json, said: str) -> None:
    (problem,) = check(Vllm(engine_args=args), OPTIONS, "targets.vllm")
    assert said in problem.message and problem.place == f"targets.vllm.engine_args.{next(iter(args))}"


@pytest.mark.parametrize(
    "args",
    [
        {"max_num_seqs": 8},
        {"enable_prefix_caching": False},
        {"no-enable-prefix-caching": True},
        {"device_memory": 0.5},
        {"compilation_config.mode": 3},
        {"scheduling_policy": "priority"},
    ],
)
def test_engine_args_that_vllm_has_pass(args: Json) -> None:
    assert check(Vllm(engine_args=args), OPTIONS, "targets.vllm") == ()


def test_without_an_installed_vllm_what_is_never_allowed_is_still_refused() -> None:
    assert check(Vllm(engine_args={"worker_cls": "x"}), None, "t")
    assert check(Vllm(engine_args={"whatever": 1}), None, "t") == ()


def test_an_engine_that_lacks_what_is_written_for_it_is_another_release() -> None:
    (problem,) = lacking(vllm.config(Vllm(), {}, GPU), {"dtype": OPTIONS["max-num-seqs"]}, "targets.vllm")
    assert problem.message == "this vLLM has no option --kv-cache-dtype, which optpipe writes"
    assert lacking({"max-num-seqs": 4, "no-enable-prefix-caching": True}, OPTIONS, "targets.vllm") == ()


# ---------------------------------------------------------------- asking an installed vLLM

PARSER = """
def make_arg_parser(parser):
    parser.add_argument("--max-num-seqs", type=int)
    return parser
"""


def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str]) -> Json:
    """The options of a small package vllm of these modules, asked in a Python of its own."""
    for name, text in {"vllm/utils/argparse_utils.py": "import argparse\n"
                       "FlexibleArgumentParser = argparse.ArgumentParser\n", **modules}.items():  # fmt: skip
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (tmp_path / "site" / "vllm").rglob("."):
        (folder / "__init__.py").touch()
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{tmp_path / "site"}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return installed_options(Toolchain("vllm-mine", "interpreter", (str(python),), {}, "sha256:f"))


@pytest.mark.parametrize("home", ["launchers", "openai"])
def test_options_are_asked_of_the_parser_wherever_this_release_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    found = asked(tmp_path, monkeypatch, {f"vllm/entrypoints/{home}/cli_args.py": PARSER})
    assert "max-num-seqs" in found


BROKEN = [
    ({"vllm/entrypoints/openai/cli_args.py": PARSER, "vllm/__init__.py": "import no_torch"}, "named 'no_torch'"),
    ({"vllm/entrypoints/__init__.py": "import no_ray"}, "named 'no_ray'"),
    ({"vllm/entrypoints/openai/cli_args.py": "raise RuntimeError('no GPU')"}, "RuntimeError: no GPU"),
    ({"vllm/entrypoints/openai/cli_args.py": "import sys; sys.exit(0)"}, "it printed no JSON"),
]


@pytest.mark.parametrize(("modules", "told"), BROKEN)
def test_a_vllm_that_does_not_answer_is_an_environment_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modules: dict[str, str], told: str
) -> None:
    with pytest.raises(EnvironmentMissing, match=told) as missing:
        asked(tmp_path, monkeypatch, modules)
    assert missing.value.place == "toolchain vllm-mine"
    assert not list((tmp_path / "home").rglob("*.json")), "what was not answered is not kept"
