"""One whole build over fakes, which tests look at or copy to go on from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.place import Done, Place


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    """A place with a finished build, to be looked at only, and what the build said."""
    place = Place.new(tmp_path_factory.mktemp("built") / "place")
    return place, place.build()


@pytest.fixture
def again(built: tuple[Place, Done], tmp_path: Path) -> Place:
    """A copy of it to build in."""
    return built[0].copied(tmp_path / "place")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[..., Place]:
    """A new place whose recipe has these keys."""

    def make(**keys: object) -> Place:
        place = Place.new(tmp_path / "fresh")
        place.recipe |= keys
        return place

    return make
