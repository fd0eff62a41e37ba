"""Serving a published version: verified first, then its engine as it was confirmed, ended with all it started."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optpipe import bundle as bundles
from optpipe import toolchains
from optpipe.backends import engines, registries
from optpipe.backends.executors.engine_run import ask, can_bind
from optpipe.backends.executors.keys import code_key
from optpipe.console import say
from optpipe.errors import BackendFailed, EnvironmentMissing, InputError
from optpipe.model.hardware import this_machine
from optpipe.processes import end_leftovers
from optpipe.proofs import Notary, Policy, examine
from optpipe.records import Hardware, Json, bound_to, foreign
from optpipe.rundir import PLACE, JobStore, KeptFolder, optpipe_home
from optpipe.supervised import Command, Supervised

READY_S = 900.0
ENDLESS_S = 3650 * 86400.0


def serve_bundle(reference: str, registry: str, policy: Policy, at: tuple[str, int], cache: Path) -> int:
    """Serve at host and port until the engine ends or the user stops it; the exit code. Raises OptpipeError.

    `cache`: of builds, which may have compiled what this engine compiles when it starts.
    """
    host, port = at
    folder, name = located(reference, registry, policy)
    proof = examine(folder, policy, name=None if Path(reference).is_dir() else name).demand(reference).proof
    assert proof is not None, "what has no manifest is not accepted"
    if not can_bind(port):
        raise EnvironmentMissing(f"port {port} is taken", hint="choose another with --port, or stop what listens")
    about = json.loads((folder / "optpipe.json").read_text(encoding="utf-8"))
    engine = toolchain_for(about, this_machine())
    end_leftovers(say)
    say(f"{name}: {about['candidate']}, {about['bytes'] / 1e6:,.1f} MB, {proof.told}")
    with tempfile.TemporaryDirectory(prefix="optpipe-serve-") as scratch:
        order = command(folder, name, engine, about, Path(scratch), at)
        for last in (False, True):
            with kept_code(about, engine, cache) as code:
                try:
                    return run_engine(placed(order, code), host, port, code)
                except BackendFailed:
                    if last or code is None or not code.suspect:
                        raise
            say("it did not start with the code that was kept: starting again without")
    raise AssertionError("the last try serves or raises")


def placed(order: Command, code: KeptFolder | None) -> Command:
    """The command with the folder for what it compiles in its variables."""
    own = {key: str(code.path) if code and value == PLACE else value for key, value in order.env.items()}
    return replace(order, env=own)


@contextmanager
def kept_code(about: Json, engine: toolchains.Toolchain, cache: Path) -> Iterator[KeptFolder | None]:
    """Where this engine finds and leaves what it compiles when it starts; None where it compiles nothing."""
    target = about["target"]
    if target.get("compiles") is None:
        yield None
        return
    key = code_key((target["engine"], about["model_digest"], target["compiles"]), engine.fingerprint, this_machine())
    store = JobStore(cache if cache.is_dir() else optpipe_home())
    code = store.code.hold(key)
    if code.empty:
        say("nothing that this engine compiled is kept: it compiles now, which takes minutes")
    try:
        yield code
    finally:
        code.close()


def located(reference: str, registry: str, policy: Policy) -> tuple[Path, str]:
    """A bundle's folder, named by its path or by a registry reference, and what to serve it as."""
    if (folder := bundles.bundle_at(Path(reference))) is not None:
        return folder.absolute(), Path(reference).absolute().name
    source = registries.at(registry, notary=Notary(say, policy))
    version = source.resolve(reference)
    return source.local(version), version.name


def toolchain_for(about: Json, here: Hardware) -> toolchains.Toolchain:
    """The engine's environment. InputError where the version was compiled for another engine version or machine."""
    target, made = about["target"], about.get("compiled")
    engine = engines.ENGINES[target["engine"]]
    gpu = about["requirements"]["platform"] == "cuda"
    chain = toolchains.get(engine.toolchain(here if gpu else replace(here, gpus=0)), None, say)
    now = bound_to(target["engine"], engines.version(engine, chain.versions), here)
    if made and (reason := foreign(made["bound_to"], now)):
        hint = "compile it anew here: `optpipe build recipe.resolved.yaml`, with the recipe in its folder"
        raise InputError(reason, place=about["candidate"], hint=hint)
    return chain


def command(
    folder: Path, name: str, engine: toolchains.Toolchain, about: Json, scratch: Path, at: tuple[str, int]
) -> Command:
    """E.g. `vllm serve <bundle> --config <bundle>/engine/vllm.yaml`, in the engine's own environment."""
    host, port = at
    target = about["target"]
    config = folder / engines.file_of(target["engine"])
    values = {"{config}": str(config), "{host}": host, "{port}": str(port)}
    values["{source}"] = str(toolchains.worker_source())
    words = tuple(values.get(word, word) for word in engines.ENGINES[target["engine"]].argv(str(folder), name))
    own = {key: values.get(str(value), str(value)) for key, value in target["environment"].items()}
    env = engine.environment(os.environ) | own
    return Command(
        title=f"serve {name}",
        argv=engine.argv(*words),
        env=env,
        cwd=scratch,
        log=scratch / "engine.log",
        status=scratch / "status.json",
        timeout_s=ENDLESS_S,
    )


def run_engine(order: Command, host: str, port: int, code: KeptFolder | None = None) -> int:
    """Start, say when it is ready, wait; whatever happens, nothing of it is left."""
    process = Supervised(order, (code.lock,) if code else ())
    try:
        say("starting the engine (on a CPU half a minute)")
        began = time.monotonic()
        while ask(port, "/health")[0] != 200:
            if process.wait(0.5) is not None or time.monotonic() - began > READY_S:
                lines = order.log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:]
                raise BackendFailed("the engine did not get ready:\n" + "\n".join(lines))
        if code:
            code.started(time.monotonic() - began, {})
        say(f"ready after {time.monotonic() - began:.0f} s: http://{host}:{port}/v1 (Ctrl-C ends it)")
        while (ended := process.wait(1.0)) is None:
            pass
        raise BackendFailed(f"the engine {ended.reason()}")
    except KeyboardInterrupt:
        say("stopping")
        return 0
    finally:
        process.stop()
