"""`optpipe serve`: start the engine of a published version with the settings that it was tuned and confirmed with."""

from __future__ import annotations

from typing import Annotated

import typer

from optpipe.cli.shared import (
    DEFAULT_ARTIFACTS,
    AllowUnsigned,
    Artifacts,
    Identity,
    Issuer,
    Key,
    Where,
    end_like_ctrl_c,
)


def serve(
    reference: Annotated[str, typer.Argument(help="name@alias, name@sha256:..., or a bundle's folder.")],
    artifacts: Artifacts = DEFAULT_ARTIFACTS,
    registry: Where = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    key: Key = None,
    identity: Identity = None,
    issuer: Issuer = None,
    allow_unsigned: AllowUnsigned = False,
) -> None:
    """Verify a version and serve it; Ctrl-C ends the engine and all it started."""
    from optpipe.proofs import load_policy
    from optpipe.serve import serve_bundle

    end_like_ctrl_c()
    policy = load_policy(key, identity, issuer, allow_unsigned=allow_unsigned)
    where, cache = registry or str(artifacts / "registry"), artifacts.absolute() / "cache"
    raise typer.Exit(serve_bundle(reference, where, policy, (host, port), cache))
