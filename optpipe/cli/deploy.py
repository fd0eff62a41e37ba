"""`optpipe deploy`: configuration for systems that exist, from a version's measured figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from optpipe.cli.shared import AsJson, Where

Platform = Annotated[
    Literal["compose", "kubernetes", "kserve", "llm-d"], typer.Option("--for", help="The system it is for.")
]


def deploy(
    reference: Annotated[str, typer.Argument(help="name@alias, or a bundle's folder.", show_default=False)],
    platform: Platform,
    out: Annotated[Path | None, typer.Option("--out", help="A new folder; by default deploy/NAME/SYSTEM.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="The engine's image.")] = None,
    optpipe_image: Annotated[str | None, typer.Option("--optpipe-image", help="An image that has optpipe.")] = None,
    peak_rps: Annotated[float | None, typer.Option("--peak-rps", help="Requests per second at your peak.")] = None,
    max_replicas: Annotated[int | None, typer.Option("--max-replicas", help="Instances at most.")] = None,
    prefill: Annotated[int, typer.Option("--prefill", help="On llm-d: instances for prompts alone.")] = 0,
    as_json: AsJson = False,
    registry: Where = None,
) -> None:
    """Write manifests for a version: engine settings, queue, scaling, alerts, each number with its source."""
    from optpipe import console
    from optpipe.cli.compare import published
    from optpipe.deploy import Wish, manifests, read
    from optpipe.errors import InputError
    from optpipe.rundir import write_atomic

    least = {"--peak-rps": (peak_rps, 1e-9), "--max-replicas": (max_replicas, 1), "--prefill": (prefill, 0)}
    for name, (value, low) in least.items():
        if value is not None and not low <= value < 1e6:
            hint = f"{'more than 0' if 0 < low < 1 else f'{low:g} or more'}, and less than a million"
            raise InputError(f"{value:g} is out of range", place=name, hint=hint)
    if prefill and platform != "llm-d":
        raise InputError(f"{platform} does not separate prefill", place="--prefill", hint="--for llm-d does")
    found = published(reference, registry)
    wish = Wish(reference, registry, image, optpipe_image, peak_rps, max_replicas, prefill)
    facts = read(found.folder, found.digest, wish)
    target = out or Path("deploy") / facts.name / platform
    if target.is_dir() and any(target.iterdir()) and not (target / "README.md").is_file():
        raise InputError(f"{target} holds something else", place="--out", hint="name a new folder")
    files = manifests(platform, facts)
    for name, content in files.items():
        write_atomic(target / name, content.encode())
    if as_json:
        numbers = {number.name: {"value": number.value, "from": number.source} for number in facts.numbers.values()}
        return console.emit({"folder": str(target), "files": sorted(files), "numbers": numbers, "notes": facts.notes})
    console.out(f"{target}: {', '.join(sorted(files))}")
    for note in facts.notes:
        console.say(f"note: {note}")
