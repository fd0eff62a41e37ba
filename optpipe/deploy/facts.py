"""What a deployment needs to know of a version, each number with the record or rule that it comes from."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optpipe import __version__
from optpipe.backends.engines import ENGINES, file_of
from optpipe.backends.engines.files import elsewhere
from optpipe.deploy.servers import Server, server
from optpipe.errors import InputError
from optpipe.records import Json, LoadFigures, from_json
from optpipe.rundir import read_json, read_yaml, readable

HEADROOM = 1.4
"""Instances over what the measured capacity needs: practitioners keep 30 to 50 %."""
QUEUE = 2
"""Requests that may wait, as a multiple of those in flight at capacity: 2 to 3, then 429."""
UTILISATION = 0.7
"""Share of the capacity at which another instance is started."""
IMAGE = re.compile(r"[\w.-]+(:\d+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII)


@dataclass(frozen=True)
class Number:
    """A figure in a manifest, and where it comes from."""

    name: str
    value: float
    source: str

    @property
    def shown(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Wish:
    """What only whoever deploys knows."""

    reference: str
    registry: str | None = None
    image: str | None = None
    optpipe_image: str | None = None
    peak_rps: float | None = None
    max_replicas: int | None = None
    prefill: int = 0
    """Instances that only read prompts, where a platform separates the two phases; 0: it does not."""


@dataclass(frozen=True)
class Facts:
    """One version, ready to be written down for any platform."""

    name: str
    digest: str
    version: str
    server: Server
    settings: Json
    environment: Mapping[str, str]
    image: str
    optpipe_image: str
    reference: str
    registry: str | None
    gpus: int
    labels: Mapping[str, str]
    """Of the nodes that it can run on."""
    numbers: Mapping[str, Number]
    prefill: int = 0
    notes: tuple[str, ...] = field(default=())

    def __getitem__(self, name: str) -> float:
        return self.numbers[name].value

    def whole(self, name: str) -> int:
        """A number as a whole one."""
        return math.ceil(self[name])

    @property
    def model(self) -> str:
        """The model's folder in every container; some engines call the model as its folder is called."""
        return f"/model/{self.name}"

    @property
    def annotations(self) -> dict[str, str]:
        """Every number as an annotation, so that what runs says what it rests on."""
        return {
            f"optpipe.dev/{name.replace('_', '-')}": f"{number.shown} ({number.source})"
            for name, number in self.numbers.items()
        }


def read(folder: Path, digest: str, wish: Wish) -> Facts:
    """The facts of a bundle in `folder`. Raises InputError where it was never measured, or no image is known."""
    for option, name in (("--image", wish.image), ("--optpipe-image", wish.optpipe_image)):
        if name is not None and not IMAGE.fullmatch(name):
            hint = "e.g. registry.example.com/vllm-openai:v0.11.0, or NAME@sha256:..."
            raise InputError(f"{name!r} cannot be the name of an image", place=option, hint=hint)
    with readable(folder):
        return _read(folder, digest, wish)


def _read(folder: Path, digest: str, wish: Wish) -> Facts:
    about = read_json(folder / "optpipe.json")
    engine, needs = str(about["target"]["engine"]), about["requirements"]
    version = str(about["target"]["version"]).partition("+")[0]
    runs = server(engine, version, built=about.get("compiled") is not None)
    settings = dict(read_yaml(folder / file_of(engine)) or {})
    recipe = read_yaml(folder / "recipe.resolved.yaml")
    numbers = numbers_of(about, recipe, *measured(folder, str(about["candidate"])), wish)
    if runs.limits_queue:
        settings["max-num-queued-reqs"] = int(numbers["in_flight"].value + numbers["queue"].value)
    optpipe_image = wish.optpipe_image or f"optpipe:{__version__}"
    return Facts(
        name=str(about["name"]),
        digest=digest,
        version=version,
        server=runs,
        settings={**dict(sorted(settings.items())), **runs.settings},
        environment=environment(about["target"]["environment"], runs),
        image=wish.image or optpipe_image if runs.own_image else image(about, recipe, version, runs, wish),
        optpipe_image=optpipe_image,
        reference=f"{about['name']}@{digest}",
        registry=wish.registry,
        gpus=int(needs["parallelism"]["devices"]) if needs["platform"] == "cuda" and not runs.own_image else 0,
        labels=labels(needs),
        numbers=numbers,
        prefill=wish.prefill,
        notes=(*ENGINES[engine].NOTES, *bound(about.get("compiled")), *notes(wish, recipe, runs, version)),
    )


def bound(compiled: Json | None) -> tuple[str, ...]:
    """What was compiled runs on what it was compiled for."""
    if compiled is None or not compiled["bound_to"]:
        return ()
    parts = ", ".join(f"{name} {value}" for name, value in sorted(compiled["bound_to"].items()))
    return (f"it was compiled for {parts}, and runs nowhere else: choose nodes and image so, or build it anew",)


def environment(told: Mapping[str, Any], runs: Server) -> dict[str, str]:
    """The variables that the engine was measured with; not where this machine has optpipe's own modules."""
    kept = {name: value for name, value in elsewhere(told).items() if value != "{source}"}
    return {} if runs.own_image else kept


def image(about: Json, recipe: Json, version: str, runs: Server, wish: Wish) -> str:
    """The one that is asked for, else the one that it was measured in, else the one that its project publishes."""
    platform = about["requirements"]["platform"]
    published = {where: name.format(version=version) for where, name in runs.images.items()}
    if found := wish.image or measured_in(recipe, str(about["target"]["engine"])) or published.get(platform):
        return found
    raise InputError(
        f"there is no known image of {runs.title} {version} for {platform}, which it was built for" if runs.images else
        f"no image of {runs.title} {version} is named",
        place="--image",
        hint="name its project's, or one that you built or mirror, by digest if you can",
    )  # fmt: skip


def measured_in(recipe: Json, engine: str) -> str | None:
    """The image of the engine's toolchain, where the recipe names one: the last word of its command."""
    chains = recipe.get("toolchains") or {}
    own = [chains[name] for name in (engine, f"{engine}-cpu") if name in chains]
    return next((str(chain["command"][-1]) for chain in own if chain["kind"] == "image"), None)


def labels(needs: Json) -> dict[str, str]:
    """Node labels that NVIDIA's and the node feature discovery set: the machine that the figures hold for."""
    if needs["platform"] == "cuda":
        major = str(needs.get("compute_capability") or "").partition(".")[0]
        return {"nvidia.com/gpu.compute.major": major} if major else {}
    known = {"avx512_vnni": "AVX512VNNI", "avx512_bf16": "AVX512BF16", "amx_int8": "AMXINT8"}
    found = str(needs.get("instruction_set") or "").split()
    flags = {f"feature.node.kubernetes.io/cpu-cpuid.{known[word]}": "true" for word in found if word in known}
    return {"kubernetes.io/os": "linux", **flags}


def measured(folder: Path, candidate: str) -> tuple[LoadFigures, str]:
    """The figures that the version ships with: of its confirmation, else of its benchmark."""
    for name in ("10-confirm.json", f"07-benchmark/{candidate}.json"):
        path = folder / "records" / name
        figures = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.is_file() else None
        if figures is not None:
            return from_json(LoadFigures, figures), f"records/{name}"
    raise InputError("its records hold no load", place=str(folder), hint="build it with an engine that can serve it")


def notes(wish: Wish, recipe: Json, runs: Server, version: str) -> tuple[str, ...]:
    found = []
    if wish.peak_rps is None:
        found.append("no peak was given (--peak-rps), so one instance is the least")
    if recipe["load"].get("scenario") != "steady":
        found.append("the load that was measured was not steady: read its figures before you size by them")
    if lacking := ", ".join(runs.metrics.lacking):
        text = f"{runs.title} {version} does not tell Prometheus {lacking}"
        found.append(f"{text}: there is no alert, panel or scaling by it but what the balancer sees")
    if runs.own_image:
        found.append(
            f"{wish.optpipe_image or f'optpipe:{__version__}'} must hold the engine's toolchain "
            "(`optpipe toolchain install onnxruntime-cpu`), else each start installs it from your index"
        )
    return tuple(found)


def numbers_of(about: Json, recipe: Json, figures: LoadFigures, source: str, wish: Wish) -> dict[str, Number]:
    """Every number that a manifest holds, by name."""
    goodput = figures.goodput_per_s
    if goodput.value <= 0:
        raise InputError("no request was inside the SLO", place=source, hint="loosen the SLO, or serve another version")
    found = [in_flight(figures, source), Number("goodput_per_s", round(goodput.value, 3), f"{source} goodput_per_s")]
    capacity = found[0].value
    found += [
        Number("queue", QUEUE * capacity, f"{QUEUE} x in_flight; beyond it 429"),
        Number("scale_at", round(UTILISATION * capacity, 2), f"{UTILISATION:g} x in_flight"),
        Number("memory_bytes", about["requirements"]["memory_bytes_estimated"]["value"], "02-plan.json, estimated"),
        Number("cpus", recipe.get("engine_threads", 1) + 1, "engine_threads of the recipe, and one for the server"),
        *replicas(goodput.value, wish),
        *limits(recipe),
    ]
    return {number.name: number for number in found}


def in_flight(figures: LoadFigures, source: str) -> Number:
    """Requests that one instance had at work when its goodput was measured."""
    if figures.concurrency is not None:
        return Number("in_flight", figures.concurrency, f"{source} concurrency")
    typical = figures.e2e_ms.p50
    if typical is None:
        raise InputError("too few requests for a median", place=source, hint="measure with a load of 20 or more")
    value = max(1, round(figures.achieved_rate * typical / 1e3))
    return Number("in_flight", value, f"{source} achieved_rate x e2e_ms p50 (Little's law)")


def replicas(goodput: float, wish: Wish) -> tuple[Number, Number]:
    """At least so many instances, and at most."""
    if wish.peak_rps is None:
        least = Number("replicas", 1, "no --peak-rps was given")
    else:
        count = math.ceil(HEADROOM * wish.peak_rps / goodput)
        least = Number("replicas", count, f"--peak-rps {wish.peak_rps:g} / goodput_per_s x {HEADROOM:g} of headroom")
    if wish.max_replicas is None:
        return least, Number("max_replicas", max(4, 2 * least.value), "twice replicas, 4 at least; --max-replicas")
    if wish.max_replicas < least.value:
        hint = f"{least.value:g} are needed for the peak: {least.source}"
        raise InputError(f"{wish.max_replicas} is too few", place="--max-replicas", hint=hint)
    return least, Number("max_replicas", wish.max_replicas, "--max-replicas")


def limits(recipe: Json) -> list[Number]:
    """The SLO's bounds in seconds, each with its percentile: what alerts watch."""
    found = []
    for metric, bounds in (recipe.get("slo") or {}).items():
        for percentile, limit in (bounds or {}).items() if isinstance(bounds, dict) else ():
            if limit is not None:
                name = f"{metric.removesuffix('_ms')}_{percentile}_s"
                found.append(Number(name, limit / 1e3, f"slo.{metric}.{percentile} of the recipe"))
    return found
