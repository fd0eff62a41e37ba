"""`optpipe deploy` for engines that are not vLLM: their own commands and metrics, and what they do not tell."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from jsonschema import Draft7Validator

from optpipe.backends.engines import file_of, tensorrt_llm_options
from optpipe.backends.engines.tensorrt_llm import TensorRtLlm
from optpipe.cli import run as command
from optpipe.deploy import Facts, Wish, manifests, read
from optpipe.deploy.servers import server
from optpipe.errors import InputError
from optpipe.model import fetching, sources
from optpipe.records import Compiled
from optpipe.rundir import optpipe_home
from optpipe.stages.package import Engine, package
from tests.quiet import QuietServer
from tests.tools import tool
from tests.unit.test_deploy import COMPOSE_SCHEMA, KUBERNETES, REGISTRY, Slow, documents, free_port, pods
from tests.unit.test_deploy import wait_until_ready as balanced
from tests.unit.test_package import begun, records

TRT = {"kv_cache_config": {"enable_block_reuse": False}, "max_batch_size": 64, "tensor_parallel_size": 2}
OWN = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": "{source}", "TRTLLM_NO_USAGE_STATS": "1"}
ENGINES = {
    "trt-1.3": (Engine("tensorrt_llm", "1.3.0", TRT, OWN), None),
    "trt-1.2-pytorch": (Engine("tensorrt_llm", "1.2.1", TRT, OWN), None),
    "trt-1.2": (Engine("tensorrt_llm", "1.2.1", TRT, OWN), "rank0.engine"),
    "trt-1.1": (Engine("tensorrt_llm", "1.1.0", TRT, OWN), "rank0.engine"),
    "onnxruntime": (Engine("onnxruntime", "0.18.0", {"max-num-seqs": 8, "threads": 1}, OWN), "model.onnx"),
}
IMAGE = "registry.example.com/tensorrt-llm@sha256:" + "3c" * 32
UNSEEN = "not run on hardware here"
PLATFORMS = ("compose", "kubernetes", "kserve")


def compiled(folder: Path, engine: Engine, weights: str) -> Compiled:
    """A folder as a compiler leaves it; nothing here could be served."""
    folder.mkdir(parents=True)
    for name in (weights, "tokenizer.json", "config.json"):
        (folder / name).write_text("{}")
    about = ("sq-w8a8@vllm", engine.name, engine.version, True, "made for a test", folder)
    made_from, bound, limits = "sha256:" + "7e" * 32, {"gpu": "NVIDIA H100"}, {"max_model_len": 512}
    return Compiled(*about, "sha256:" + "c0" * 32, 3, engine.name, made_from, bound, limits)


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A version that was confirmed on the engine."""

    def packaged(which: str) -> Path:
        engine, weights = ENGINES[which]
        run = begun(tmp_path_factory.mktemp("deploy") / "artifacts", "imaginary-135m")
        data = records(run)
        if engine.name == "tensorrt_llm":
            machine = replace(data.hardware, gpu="NVIDIA H100", gpus=2, compute_capability="9.0", driver="580")
            data = replace(data, hardware=machine)
        if weights:
            data = replace(data, compiled=(compiled(run.store.root / "jobs" / "c" / "files", engine, weights),))
        return package(run, data, engine).path

    return packaged


@pytest.fixture(scope="module")
def facts_of(bundle_of: Callable[[str], Path]) -> Callable[[str], Facts]:
    known: dict[str, Facts] = {}

    def found(which: str) -> Facts:
        if which not in known:
            image = IMAGE if which.startswith("trt") else None
            known[which] = read(
                bundle_of(which), "sha256:" + "7e" * 32, Wish("x@champion", REGISTRY, image, peak_rps=9)
            )
        return known[which]

    return found


def engine_of(files: dict[str, str]) -> dict[str, Any]:
    """The engine's container in a Deployment."""
    (found,) = (d for d in documents(files) if d["kind"] == "Deployment" and d["metadata"]["name"].endswith("-engine"))
    return dict(found["spec"]["template"]["spec"]["containers"][0])


# ---------------------------------------------------------------- each by its own schema or tool


@pytest.mark.parametrize("which", ENGINES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_schemas_and_tools_accept_everything(
    facts_of: Callable[[str], Facts], platform: str, which: str, tmp_path: Path
) -> None:
    files = manifests(platform, facts_of(which))
    for document in documents(files):
        if "." not in document["apiVersion"] or document["apiVersion"].endswith(".k8s.io/v1"):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        for pod in pods(document):
            wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
            kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    checks = {"rules.yml": ["check", "rules"], "prometheus.yml": ["check", "config", "--syntax-only"]}
    for name, words in checks.items():
        if name in files:
            done = subprocess.run([tool("promtool", kind="deploy"), *words, name], cwd=tmp_path, capture_output=True)
            assert done.returncode == 0, done.stdout + done.stderr
    if "dashboard.json" in files:
        register_default_plugins()
        found = Dashboard.from_json(json.loads(files["dashboard.json"]))
        assert found.panels and all(panel.targets for panel in found.panels)  # type: ignore[union-attr]


@pytest.mark.parametrize("which", ENGINES)
def test_the_compose_file_is_one_and_every_file_that_it_mounts_is_there(
    facts_of: Callable[[str], Facts], which: str
) -> None:
    files = manifests("compose", facts_of(which))
    schema = fetching.fetch(sources.parse(COMPOSE_SCHEMA), optpipe_home(), lambda text: None).path.read_text()
    project = yaml.safe_load(files["compose.yaml"])
    assert list(Draft7Validator(json.loads(schema)).iter_errors(project)) == []
    mounted = [v for service in project["services"].values() for v in service.get("volumes", ()) if v.startswith("./")]
    assert {v[2:].partition(":")[0] for v in mounted} <= {*files, "trust.toml"}
    if docker := shutil.which("docker"):
        subprocess.run([docker, "compose", "-f", "-", "config", "-q"], input=yaml.safe_dump(project), text=True)


def test_an_engine_runs_in_the_image_that_it_was_measured_in_else_in_one_that_is_named(
    bundle_of: Callable[[str], Path],
) -> None:
    bundle, digest = bundle_of("trt-1.3"), "sha256:" + "7e" * 32
    with pytest.raises(InputError, match="no image of TensorRT-LLM 1") as refused:
        read(bundle, digest, Wish("x@champion", REGISTRY))
    assert refused.value.place == "--image"
    recipe = yaml.safe_load((bundle / "recipe.resolved.yaml").read_text())
    recipe["toolchains"] = {"tensorrt_llm": {"kind": "image", "command": ["podman", "run", "--rm", IMAGE]}}
    (bundle / "recipe.resolved.yaml").write_text(yaml.safe_dump(recipe))
    assert read(bundle, digest, Wish("x@champion", REGISTRY)).image == IMAGE
    assert read(bundle, digest, Wish("x@champion", REGISTRY, "other:1")).image == "other:1"


# ---------------------------------------------------------------- TensorRT-LLM


SERVED = ["--host", "0.0.0.0", "--port", "8000"]
COMMANDS = {
    "trt-1.3": ["--backend", "pytorch", "--config", "/config/trtllm.yaml", *SERVED,
                "--served_model_name", "imaginary-135m"],
    "trt-1.2-pytorch": ["--backend", "pytorch", "--extra_llm_api_options", "/config/trtllm.yaml", *SERVED,
                        "--tokenizer", "/model/imaginary-135m"],
    "trt-1.2": ["--backend", "tensorrt", "--extra_llm_api_options", "/config/trtllm.yaml", *SERVED,
                "--tokenizer", "/model/imaginary-135m"],
}  # fmt: skip


@pytest.mark.parametrize("which", COMMANDS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_trtllm_serve_starts_with_the_words_of_its_release(
    facts_of: Callable[[str], Facts], which: str, platform: str
) -> None:
    """Up to 1.2 a model is called as its folder is, so the folder has the version's name everywhere."""
    files = manifests(platform, facts_of(which))
    wanted = ["trtllm-serve", "/model/imaginary-135m", *COMMANDS[which]]
    if platform == "compose":
        service = yaml.safe_load(files["compose.yaml"])["services"]["engine"]
        assert service["entrypoint"] == wanted
        assert service["image"] == IMAGE
        assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
        assert service["environment"] == {"HF_HUB_OFFLINE": "1", "TRTLLM_NO_USAGE_STATS": "1"}
    else:
        (pod,) = [d["spec"]["predictor"] for d in documents(files) if d["kind"] == "InferenceService"] or [
            d["spec"]["template"]["spec"] for d in documents(files) if "initContainers" in str(d)
        ]
        container, fetched = pod["containers"][0], pod["initContainers"][0]
        assert container["command"] + container["args"] == wanted
        assert fetched["args"][:3] == ["pull", f"imaginary-135m@sha256:{'7e' * 32}", "/model/imaginary-135m"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
        assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] == 3600


@pytest.mark.parametrize(("which", "more"), [
    ("trt-1.3", {"return_perf_metrics": True, "enable_iter_perf_stats": True}),
    ("trt-1.2-pytorch", {"return_perf_metrics": True}),
    ("trt-1.2", {"return_perf_metrics": True}),
    ("trt-1.1", {}),
])  # fmt: skip
def test_its_yaml_holds_what_was_confirmed_and_keys_of_its_release_that_switch_metrics_on(
    facts_of: Callable[[str], Facts], which: str, more: dict[str, bool]
) -> None:
    """An engine before 1.2 ends when it is asked for metrics."""
    found = yaml.safe_load(manifests("compose", facts_of(which))["trtllm.yaml"])
    assert found == {**TRT, **more}
    backend = "tensorrt" if ENGINES[which][1] else "pytorch"
    known = tensorrt_llm_options.shipped()[backend]
    assert found.keys() <= known.keys()
    assert tensorrt_llm_options.unknown_keys(TensorRtLlm(backend=backend), found) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("which", [one for one in ENGINES if one.startswith("trt")])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_file_says_that_no_hardware_was_seen(facts_of: Callable[[str], Facts], platform: str, which: str) -> None:
    for name, text in manifests(platform, facts_of(which)).items():
        assert UNSEEN in text, name
        if not name.endswith((".json", ".md")):
            assert text.startswith(f"# {UNSEEN}"), name


def test_llm_d_is_refused_with_the_reason(facts_of: Callable[[str], Facts]) -> None:
    for which in ("trt-1.3", "onnxruntime"):
        with pytest.raises(InputError, match="llm-d serves with vLLM") as refused:
            manifests("llm-d", facts_of(which))
        assert "kubernetes or kserve" in str(refused.value.hint)


def test_an_engine_that_nobody_wrote_down_is_refused_with_what_to_use() -> None:
    with pytest.raises(InputError, match="how sglang runs in a container") as refused:
        server("sglang", "1", built=False)
    assert "optpipe serve" in str(refused.value.hint)


def test_a_release_candidate_may_tell_less_and_the_files_say_so() -> None:
    assert any("1.3.0rc5" in note for note in server("tensorrt_llm", "1.3.0rc5", built=False).unseen)
    assert len(server("tensorrt_llm", "1.3.0", built=False).unseen) == 1


def test_the_command_says_what_was_not_seen(
    bundle_of: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["deploy", str(bundle_of("trt-1.2")), "--for", "kubernetes", "--image", IMAGE, "--out", str(out)]
    assert command(words) == 0
    said = capsys.readouterr().err
    assert "note: it was compiled for gpu NVIDIA H100, and runs nowhere else" in said
    assert f"note: {UNSEEN}" in said and "does not tell Prometheus output tokens, requests at work" in said
    assert UNSEEN in (out / "README.md").read_text()


# ---------------------------------------------------------------- what it tells Prometheus


def alerts(facts: Facts, platform: str) -> dict[str, dict[str, Any]]:
    text = manifests(platform, facts).get("rules.yml", "groups: [{rules: []}]")
    return {rule["alert"]: rule for rule in yaml.safe_load(text)["groups"][0]["rules"]}


def test_a_rule_or_panel_stands_only_on_a_metric_that_the_release_has(facts_of: Callable[[str], Facts]) -> None:
    told = {which: set(alerts(facts_of(which), "kserve")) for which in ENGINES}
    latencies = {"TtftP90TooHigh", "TpotP90TooHigh"}
    assert told["trt-1.3"] == latencies | {"QueueIsLong", "KvCacheIsFull", "NoInstance"}
    assert told["trt-1.2"] == told["trt-1.2-pytorch"] == latencies | {"NoInstance"}
    assert told["trt-1.1"] == told["onnxruntime"] == set(), "nothing is told, and KServe has no balancer of ours"
    assert "rules.yml" not in manifests("kserve", facts_of("trt-1.1"))
    assert set(alerts(facts_of("trt-1.1"), "compose")) == {
        "TooManyErrors", "RequestsAreTurnedAway", "QueueIsLong", "NoInstance",
    }  # fmt: skip
    text = "".join(manifests("kubernetes", facts_of("trt-1.2")).values())
    assert "num_requests_running" not in text and "kv_cache_utilization" not in text and "vllm:" not in text


def histogram(name: str, labels: str, bound: float, *, slow: bool) -> list[dict[str, str]]:
    inside, beyond = ("0+1x30", "0+9x30") if slow else ("0+10x30", "0+10x30")
    rest = [(f"{bound:g}", inside), (f"{bound + 1:g}", beyond), ("+Inf", "0+10x30")]
    return [{"series": f'{name}_bucket{{{labels},le="{le}"}}', "values": values} for le, values in rest]


SERIES = [
    ("trt-1.3", "trtllm_time_to_first_token_seconds", 'model_name="undefined",pod="imaginary-135m-engine-7b-x"'),
    ("trt-1.2", "trtllm_time_to_first_token_seconds", 'model_name="undefined",pod="imaginary-135m-engine-7b-x"'),
    ("trt-1.2", "time_to_first_token_seconds", 'model_name="undefined",pod="imaginary-135m-engine-7b-x"'),
]


@pytest.mark.parametrize(("which", "name", "labels"), SERIES)
def test_an_alert_fires_on_its_own_pods_series_whatever_they_are_called_and_not_on_anothers(
    facts_of: Callable[[str], Facts], which: str, name: str, labels: str, tmp_path: Path
) -> None:
    """promtool's own unit tests of rules, on histograms as the release exports them."""
    facts = facts_of(which)
    (tmp_path / "rules.yml").write_text(manifests("kubernetes", facts)["rules.yml"])
    rule, bound = alerts(facts, "kubernetes")["TtftP90TooHigh"], facts["ttft_p90_s"]
    fired = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
    other = labels.replace("imaginary-135m", "another")
    cases = [(labels, True, [fired]), (labels, False, []), (other, True, [])]
    tests = [
        {
            "interval": "1m",
            "input_series": histogram(name, own, bound, slow=slow),
            "alert_rule_test": [{"eval_time": "20m", "alertname": "TtftP90TooHigh", "exp_alerts": wanted}],
        }
        for own, slow, wanted in cases
    ]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    words = [tool("promtool", kind="deploy"), "test", "rules", "test.yml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_scraping_and_scaling_read_what_is_told(facts_of: Callable[[str], Facts]) -> None:
    def scaled(which: str) -> tuple[dict[str, Any], dict[str, Any]]:
        files = manifests("kubernetes", facts_of(which))
        (scaler,) = (d for d in documents(files) if d["kind"] == "HorizontalPodAutoscaler")
        return scaler["spec"]["metrics"][0], yaml.safe_load(files["prometheus-adapter-values.yaml"])["rules"]

    metric, rules = scaled("trt-1.3")
    assert metric["pods"]["metric"]["name"] == rules["custom"][0]["name"]["as"]
    assert "trtllm_num_requests_running" in rules["custom"][0]["metricsQuery"]
    for which in ("trt-1.2", "onnxruntime"):
        metric, rules = scaled(which)
        assert metric["type"] == "External"
        assert metric["external"]["metric"]["name"] == rules["external"][0]["name"]["as"]
        assert "haproxy_backend_current_sessions" in rules["external"][0]["metricsQuery"]
    assert yaml.safe_load(manifests("compose", facts_of("trt-1.3"))["prometheus.yml"])["scrape_configs"][0] == {
        "job_name": "engine",
        "metrics_path": "/prometheus/metrics",
        "static_configs": [{"targets": ["engine:8000"]}],
    }
    monitors = [d for d in documents(manifests("kubernetes", facts_of("trt-1.2"))) if d["kind"] == "PodMonitor"]
    assert [one["spec"]["podMetricsEndpoints"][0]["path"] for one in monitors] == ["/prometheus/metrics", "/metrics"]


def test_the_balancer_tells_what_rules_and_scaling_read_of_it(facts_of: Callable[[str], Facts], tmp_path: Path) -> None:
    """Asked of a real HAProxy, since its names are nobody's here."""
    haproxy = tool("haproxy", kind="deploy")
    engine = QuietServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    port, metrics = free_port(), free_port()
    files = manifests("compose", facts_of("trt-1.1"))
    config = files["haproxy.cfg"].replace("engine:8000", f"127.0.0.1:{engine.server_port}")
    for old, new in ((8080, port), (8404, metrics)):
        config = config.replace(f"bind :{old}", f"bind 127.0.0.1:{new}")
    (tmp_path / "haproxy.cfg").write_text(config)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([haproxy, "-f", str(tmp_path / "haproxy.cfg")], **quiet)
    try:
        balanced(port)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{metrics}/metrics", timeout=5) as answer:
            told = answer.read().decode()
    finally:
        process.terminate()
        process.wait(10)
        engine.shutdown()
    for name in ("current_sessions", "current_queue", "active_servers"):
        assert f'haproxy_backend_{name}{{proxy="engines"' in told
        assert f"haproxy_backend_{name}" in files["rules.yml"] + files["dashboard.json"]
    assert 'haproxy_frontend_http_responses_total{proxy="requests",code="2xx"}' in told


# ---------------------------------------------------------------- ONNX Runtime


def test_onnx_runtime_is_served_by_optpipe_itself(
    facts_of: Callable[[str], Facts], bundle_of: Callable[[str], Path]
) -> None:
    """Its settings stand in the bundle; the version is verified once more, so it is told whom to trust."""
    found = engine_of(manifests("kubernetes", facts_of("onnxruntime")))
    assert found["command"] + found["args"] == ["optpipe", "serve", "/model/imaginary-135m", *SERVED]
    assert found["image"] == facts_of("onnxruntime").optpipe_image
    assert {"name": "OPTPIPE_TRUST", "value": "/trust/trust.toml"} in found["env"]
    assert "/trust" in {mount["mountPath"] for mount in found["volumeMounts"]}
    assert "/config" not in {mount["mountPath"] for mount in found["volumeMounts"]}
    assert "nvidia.com/gpu" not in found["resources"]["limits"]
    assert any("toolchain install onnxruntime-cpu" in note for note in facts_of("onnxruntime").notes)
    assert yaml.safe_load((bundle_of("onnxruntime") / file_of("onnxruntime")).read_text())["max-num-seqs"] == 8
