"""Finds the weight files of a model folder: one file, or the shards that the index names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from optpipe.errors import InputError
from optpipe.model.config import read_mapping
from optpipe.model.safetensors import Header, read_header
from optpipe.records import TensorFact

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CONVERT = (
    "pickled weights can run code and are not read: convert them once where you trust them, e.g. "
    "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(other, safe_serialization=True)"
)


@dataclass(frozen=True)
class WeightFiles:
    """What should hold the weights; `weight_map` (tensor -> file) is None without an index."""

    folder: Path
    files: tuple[str, ...]
    weight_map: dict[str, str] | None

    def place(self, file: str) -> str:
        return str(self.folder / file)


def weight_files(folder: Path) -> WeightFiles:
    """The safetensors files of a folder; InputError where there are none."""
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise InputError(found, place=str(folder), hint="a model folder is expected")
    if (folder / INDEX).is_file():
        weight_map = read_index(folder / INDEX)
        return WeightFiles(folder, tuple(sorted(set(weight_map.values()))), weight_map)
    if (folder / WEIGHTS).is_file():
        return WeightFiles(folder, (WEIGHTS,), None)
    others = sorted(path.name for path in folder.glob("*.safetensors") if path.name.startswith("model"))
    if others:
        return WeightFiles(folder, tuple(others), None)
    raise missing_weights(folder)


def missing_weights(folder: Path) -> InputError:
    """The error for a folder without safetensors, by what lies there instead."""
    place = str(folder)
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        return InputError(f"has only {', '.join(pickles[:3])}; safetensors are expected", place=place, hint=CONVERT)
    if (folder / WEIGHTS).is_symlink():
        hint = "the link's target is gone: fetch the model again"
        return InputError("is a link that leads nowhere", place=str(folder / WEIGHTS), hint=hint)
    names = sorted(path.name for path in folder.iterdir())[:8]
    return InputError(
        f"has no {WEIGHTS} and no {INDEX}; it holds {', '.join(names) or 'nothing'}",
        place=place,
        hint="a model folder holds config.json, weights as safetensors and a tokenizer",
    )


def read_index(path: Path) -> dict[str, str]:
    """tensor -> file of an index; names that leave the folder are refused."""
    hint = "fetch the index again, or remove it where one model.safetensors holds everything"
    weight_map = read_mapping(path, hint).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"weight_map: {weight_map!r:.80} is not a mapping of tensors", place=str(path), hint=hint)
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or len(PurePosixPath(file).parts) != 1 or file in (".", ".."):
            raise InputError(
                f"{tensor}: {file!r:.80} is not the name of a file in this folder", place=str(path), hint=hint
            )
        if not file.endswith(".safetensors"):
            raise InputError(f"{tensor}: {file!r:.80} is not safetensors", place=str(path), hint=CONVERT)
    return weight_map


def headers(weights: WeightFiles) -> dict[str, Header]:
    """The header of each file; InputError for the first that is missing or damaged."""
    found = {}
    for file in weights.files:
        path = weights.folder / file
        if not path.is_file():
            raise InputError("there is no such file", place=str(path), hint=missing_shard_hint(weights, file))
        found[file] = read_header(path)
    return found


def missing_shard_hint(weights: WeightFiles, file: str) -> str:
    lost = sorted(tensor for tensor, holder in (weights.weight_map or {}).items() if holder == file)
    names = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
    return f"fetch it: {INDEX} says that it holds {names}"


def tensors_of_folder(folder: Path) -> tuple[TensorFact, ...]:
    """Every tensor of a folder from headers alone."""
    return tuple(fact for header in headers(weight_files(folder)).values() for fact in header.tensors)
