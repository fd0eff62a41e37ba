"""`optpipe deploy`: manifests that their own tools accept, with numbers that lead back to a record."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from jsonschema import Draft7Validator

from optpipe.cli import run as command
from optpipe.deploy import PLATFORMS, Facts, Wish, manifests, read
from optpipe.deploy.kubernetes import ENGINE_METRIC
from optpipe.errors import InputError
from optpipe.model import fetching, sources
from optpipe.stages.package import package
from tests.quiet import QuietServer
from tests.tools import tool
from tests.unit.test_package import ENGINE, begun, records

KUBERNETES = "1.31"
REGISTRY = "oci://registry.example.com/models"
COMPOSE_SCHEMA = "wheel:docker-compose==1.29.2/compose/config/compose_spec.json"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = begun(tmp_path_factory.mktemp("deploy") / "artifacts", "imaginary-135m")
    return package(run, records(run), ENGINE).path


@pytest.fixture(scope="module")
def facts(bundle: Path) -> Facts:
    wish = Wish("imaginary-135m@champion", REGISTRY, image="vllm-cpu@sha256:" + "0" * 64, peak_rps=20)
    return read(bundle, "sha256:" + "7e" * 32, wish)


@pytest.fixture(scope="module")
def gpu(facts: Facts) -> Facts:
    labels = {"nvidia.com/gpu.compute.major": "9"}
    return replace(facts, gpus=2, labels=labels, settings={**facts.settings, "tensor-parallel-size": 2}, prefill=1)


def documents(files: dict[str, str]) -> list[dict[str, Any]]:
    return [
        document
        for name, text in files.items()
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if isinstance(document, dict) and "kind" in document
    ]


# ---------------------------------------------------------------- each by its own schema or tool


@pytest.mark.parametrize("which", ["facts", "gpu"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_kubernetes_accepts_every_object_of_its_own_and_every_pod_of_others(
    platform: str, which: str, request: pytest.FixtureRequest
) -> None:
    for document in documents(manifests(platform, request.getfixturevalue(which))):
        api = document["apiVersion"]
        if "." not in api or api.endswith(".k8s.io/v1"):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        for pod in pods(document):
            wrapped = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
            kubernetes_validate.validate(wrapped, KUBERNETES, strict=True)


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods inside an object of KServe's; its predictor has keys of its own beside a pod's."""
    spec = document["spec"] if document["kind"].endswith("InferenceService") else {}
    own = ("minReplicas", "maxReplicas", "scaleMetric", "scaleTarget", "containerConcurrency", "timeout")
    found = [{k: v for k, v in spec["predictor"].items() if k not in own}] if "predictor" in spec else []
    found += [spec[key]["template"] for key in ("prefill",) if key in spec]
    return found + ([spec["template"]] if "template" in spec else [])


def test_promtool_accepts_rules_and_configuration(facts: Facts, tmp_path: Path) -> None:
    promtool = tool("promtool", kind="deploy")
    for name, text in manifests("compose", facts).items():
        (tmp_path / name).write_text(text)
    for words in (["check", "rules", "rules.yml"], ["check", "config", "--syntax-only", "prometheus.yml"]):
        done = subprocess.run([promtool, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_fires_where_ttft_is_beyond_the_slo_and_not_inside_it(facts: Facts, tmp_path: Path) -> None:
    """promtool's own unit tests of rules, on histograms as vLLM exports them."""
    promtool = tool("promtool", kind="deploy")
    (tmp_path / "rules.yml").write_text(manifests("compose", facts)["rules.yml"])
    bound = facts["ttft_p90_s"]

    def series(slow: bool) -> list[dict[str, str]]:
        name = f'vllm:time_to_first_token_seconds_bucket{{model_name="{facts.name}",le="%s"}}'
        inside, beyond = ("0+1x30", "0+9x30") if slow else ("0+10x30", "0+10x30")
        rest = [(f"{bound:g}", inside), (f"{bound + 1:g}", beyond), ("+Inf", "0+10x30")]
        return [{"series": name % le, "values": values} for le, values in rest]

    rule = next(
        rule
        for rule in yaml.safe_load((tmp_path / "rules.yml").read_text())["groups"][0]["rules"]
        if rule["alert"] == "TtftP90TooHigh"
    )
    fired = {"exp_labels": rule["labels"], "exp_annotations": rule["annotations"]}
    tests = [
        {
            "interval": "1m",
            "input_series": series(slow),
            "alert_rule_test": [
                {"eval_time": "20m", "alertname": rule["alert"], "exp_alerts": [fired] if slow else []}
            ],
        }
        for slow in (True, False)
    ]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("platform", ["compose", "kubernetes"])
def test_haproxy_accepts_its_configuration(facts: Facts, tmp_path: Path, platform: str) -> None:
    haproxy = tool("haproxy", kind="deploy")
    files = manifests(platform, facts)
    config = files.get("haproxy.cfg") or next(
        d["data"]["haproxy.cfg"] for d in documents(files) if "haproxy.cfg" in d.get("data", {})
    )
    (tmp_path / "haproxy.cfg").write_text(config)
    done = subprocess.run([haproxy, "-c", "-f", str(tmp_path / "haproxy.cfg")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_dashboard_is_one_for_grafana(facts: Facts) -> None:
    register_default_plugins()
    found = Dashboard.from_json(json.loads(manifests("compose", facts)["dashboard.json"]))
    assert found.title and found.panels and len(found.panels) == 8
    grid = [(panel.grid_pos.x, panel.grid_pos.y) for panel in found.panels]  # type: ignore[union-attr]
    assert len(set(grid)) == len(grid)


@pytest.mark.parametrize("which", ["facts", "gpu"])
def test_the_compose_file_is_one(which: str, request: pytest.FixtureRequest) -> None:
    from optpipe.rundir import optpipe_home

    source = sources.parse(COMPOSE_SCHEMA)
    schema = json.loads(fetching.fetch(source, optpipe_home(), lambda text: None).path.read_text())
    project = yaml.safe_load(manifests("compose", request.getfixturevalue(which))["compose.yaml"])
    assert list(Draft7Validator(schema).iter_errors(project)) == []
    docker = shutil.which("docker")
    if docker:
        subprocess.run([docker, "compose", "-f", "-", "config", "-q"], input=yaml.safe_dump(project), text=True)


# ---------------------------------------------------------------- numbers


def test_every_number_says_where_it_comes_from_and_follows_from_what_was_measured(facts: Facts) -> None:
    assert all(number.source for number in facts.numbers.values())
    assert facts["goodput_per_s"] == pytest.approx(2.5, abs=0.5)
    assert "10-confirm" in facts.numbers["goodput_per_s"].source
    assert facts["queue"] == 2 * facts["in_flight"] and facts["scale_at"] == pytest.approx(0.7 * facts["in_flight"])
    assert facts["replicas"] == -(-1.4 * 20 // facts["goodput_per_s"])
    page = manifests("kubernetes", facts)["README.md"]
    assert all(f"| {number.name} | {number.shown} | {number.source} |" in page for number in facts.numbers.values())


def test_manifests_hold_the_numbers(facts: Facts) -> None:
    objects = {(d["kind"], d["metadata"]["name"]): d for d in documents(manifests("kubernetes", facts))}
    scaler = objects["HorizontalPodAutoscaler", f"{facts.name}-engine"]["spec"]
    metric = scaler["metrics"][0]["pods"]
    assert metric["metric"]["name"] == ENGINE_METRIC
    assert metric["target"]["averageValue"] == f"{round(1000 * facts['scale_at'])}m"
    down = scaler["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] == 1800 and down["policies"][0]["value"] == 25
    config = yaml.safe_load(objects["ConfigMap", f"{facts.name}-engine"]["data"]["vllm.yaml"])
    assert config == facts.settings and config["max-num-queued-reqs"] == facts["in_flight"] + facts["queue"]
    annotations = objects["Deployment", f"{facts.name}-engine"]["metadata"]["annotations"]
    assert annotations["optpipe.dev/queue"].startswith(f"{facts['queue']:g} (")


def test_a_version_is_named_by_its_digest_everywhere(facts: Facts) -> None:
    for platform in ("compose", "kubernetes", "kserve"):
        text = "".join(manifests(platform, facts).values())
        assert facts.reference in text and "@champion" not in text


def test_gpus_parallelism_and_prefill_reach_the_pods(gpu: Facts) -> None:
    (service,) = (d for d in documents(manifests("llm-d", gpu)) if d["kind"] == "LLMInferenceService")
    main = service["spec"]["template"]["containers"][0]
    assert main["name"] == "main" and main["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert service["spec"]["parallelism"] == {"tensor": 2} and service["spec"]["prefill"]["replicas"] == 1
    assert service["spec"]["model"]["uri"].startswith("oci://registry.example.com/models/")


# ---------------------------------------------------------------- the queue, really


class Slow(http.server.BaseHTTPRequestHandler):
    """An engine that answers one request in a while and counts how many it has at once."""

    now = most = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        if self.path != "/health":
            with Slow.lock:
                Slow.now += 1
                Slow.most = max(Slow.most, Slow.now)
            time.sleep(1.0)
            with Slow.lock:
                Slow.now -= 1
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *words: Any) -> None:
        pass


def test_who_comes_when_capacity_and_queue_are_full_gets_429(facts: Facts, tmp_path: Path) -> None:
    haproxy = tool("haproxy", kind="deploy")
    server = QuietServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = free_port()
    one = replace(facts, numbers={**facts.numbers, "replicas": replace(facts.numbers["replicas"], value=1)})
    config = manifests("compose", one)["haproxy.cfg"].replace("engine:8000", f"127.0.0.1:{server.server_port}")
    for old, new in ((8080, port), (8404, free_port())):
        config = config.replace(f"bind :{old}", f"bind 127.0.0.1:{new}")
    (tmp_path / "haproxy.cfg").write_text(config)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([haproxy, "-f", str(tmp_path / "haproxy.cfg")], **quiet)
    try:
        wait_until_ready(port)
        capacity, queue = facts.whole("in_flight"), facts.whole("queue")
        with ThreadPoolExecutor(2 * (capacity + queue)) as pool:
            answers = list(pool.map(lambda n: asked(port), range(2 * (capacity + queue))))
        assert Slow.most <= capacity
        assert answers.count(200) >= capacity + queue and answers.count(429) >= capacity // 2
        assert set(answers) == {200, 429}
    finally:
        process.terminate()
        process.wait(10)
        server.shutdown()


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def asked(port: int) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}/v1/models", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def wait_until_ready(port: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if asked(port) == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the balancer did not get ready")


# ---------------------------------------------------------------- the command


def test_what_cannot_be_deployed_is_told(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", str(bundle), "--out", str(tmp_path / "out")]
    assert command([*words, "--for", "compose"]) == 2 and "--image" in capsys.readouterr().err
    assert command([*words, "--for", "nomad", "--image", "x"]) == 2
    for option in ("--image", "--optpipe-image"):
        for name in ("", "a b"):
            assert command([*words, "--for", "compose", "--image", "x", option, name]) == 2
            assert f"{option}: {name!r} cannot be the name" in capsys.readouterr().err
    assert command([*words, "--for", "compose", "--image", "x", "--peak-rps", "-1"]) == 2
    assert command([*words, "--for", "compose", "--image", "x", "--prefill", "1"]) == 2
    assert command([*words, "--for", "compose", "--image", "x", "--peak-rps", "90", "--max-replicas", "2"]) == 2
    assert not (tmp_path / "out").exists()
    assert command([*words, "--for", "compose", "--image", "x", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["numbers"]["queue"]["from"] and "compose.yaml" in said["files"] and said["notes"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert command(["deploy", str(bundle), "--for", "compose", "--image", "x", "--out", str(tmp_path / "mine")]) == 2


def test_a_version_that_was_never_measured_is_not_sized(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    for path in (copy / "records").rglob("10-confirm.json"):
        path.unlink()
    shutil.rmtree(copy / "records" / "07-benchmark")
    with pytest.raises(InputError, match="no load"):
        read(copy, "sha256:1", Wish("x", image="x"))


@pytest.mark.parametrize("name", ["optpipe.json", "recipe.resolved.yaml", "engine/vllm.yaml"])
def test_a_file_that_is_missing_or_damaged_is_named(
    name: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in (None, b"a: [", b"\xff\xfe: \x00"):
        copy = tmp_path / str(content)
        shutil.copytree(bundle, copy)
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_bytes(content)
        out = ["--for", "compose", "--image", "x", "--out", str(tmp_path / "out")]
        assert command(["deploy", str(copy), *out]) == 2 and str(copy) in capsys.readouterr().err
        (copy / "records" / "01-inspect.json").unlink(missing_ok=True)
        assert command(["compare", str(copy), str(copy)]) == 2 and str(copy) in capsys.readouterr().err
        if name == "engine/vllm.yaml" and content is not None:
            assert command(["check", str(copy)]) == 2 and name in capsys.readouterr().err
