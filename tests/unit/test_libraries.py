"""The libraries that quantize: what a recipe may say of them, and that each is whole before it is offered."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter

from optpipe.backends.quantizers.libraries import DEFAULT, LIBRARIES
from optpipe.model.schemes import kind_of
from optpipe.recipe.schema import Scheme
from optpipe.records import to_json
from optpipe.toolchains.managed import ROLES
from optpipe.worker import BODIES, load_body


def classes(kind: Any) -> list[Any]:
    """The dataclasses in a union, however it is nested and annotated."""
    if get_origin(kind) is Annotated:
        return classes(get_args(kind)[0])
    return [kind] if dataclasses.is_dataclass(kind) else [one for part in get_args(kind) for one in classes(part)]


def constant(scheme: type[Any], field: str) -> str:
    hint = get_type_hints(scheme)[field]
    assert get_origin(hint) is Literal, f"{scheme.__name__}.{field} tells schemes apart"
    return str(get_args(hint)[0])


OFFERED = [(constant(one, "library"), constant(one, "method"), one) for one in classes(Scheme)]
NAMED = [pytest.param(*one, id=f"{one[0]}-{one[1]}") for one in OFFERED]


def test_what_a_recipe_may_name_is_what_can_be_run() -> None:
    assert {library for library, _, _ in OFFERED} == set(LIBRARIES)
    assert len({one[:2] for one in OFFERED}) == len(OFFERED)


@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_a_library_has_its_body_and_its_toolchain(name: str) -> None:
    library = LIBRARIES[name]
    assert library.TOOLCHAIN in ROLES
    body = load_body(library.JOB)
    assert BODIES[library.JOB].endswith(f".{name}") and body.REVISION >= 1 and callable(body.run)
    assert [other for other in LIBRARIES if LIBRARIES[other].JOB == library.JOB] == [name]


@pytest.mark.parametrize(("library", "method", "scheme"), NAMED)
def test_a_block_is_read_by_its_library_and_is_known_everywhere(library: str, method: str, scheme: type[Any]) -> None:
    block = {"method": method} if library == DEFAULT else {"library": library, "method": method}
    read = TypeAdapter(Scheme).validate_python(block)
    assert type(read) is scheme and read.library == library
    assert LIBRARIES[library].validate(read) == ()
    assert isinstance(read.needs_calibration, bool)
    assert kind_of(to_json(dataclasses.asdict(read)))


@pytest.mark.parametrize(("library", "method", "scheme"), NAMED)
def test_every_field_is_documented_and_only_the_default_library_goes_without_saying(
    library: str, method: str, scheme: type[Any]
) -> None:
    schema = TypeAdapter(scheme).json_schema()
    assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    assert ("library" in schema.get("required", ())) is (library != DEFAULT)
