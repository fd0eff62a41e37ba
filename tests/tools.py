"""Programs that some tests need: where one is missing a test is skipped, where CI asks for it, it fails."""

from __future__ import annotations

import os
import shutil

import pytest


def tool(*names: str, kind: str) -> str:
    """The first of these programs that is on PATH; OPTPIPE_TEST_REQUIRE lists kinds that must not be missing."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None and kind in os.environ.get("OPTPIPE_TEST_REQUIRE", "").split(","):
        pytest.fail(f"{' or '.join(names)} is missing, and OPTPIPE_TEST_REQUIRE names {kind}")
    if found is None:
        pytest.skip(f"no {' or '.join(names)} here")
    return found
