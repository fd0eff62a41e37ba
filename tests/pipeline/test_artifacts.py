"""What a base and a checkpoint are like, before anything is scored."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.place import INT8, Place


def test_a_layer_that_was_left_alone_rejects_its_candidate_by_name(fresh: Callable[..., Place]) -> None:
    place = fresh(tune={"trials": 0}, publish=[], checkpoints={"int8": INT8})
    place.order({"at": "quantize", "who": "int8", "do": "leave"})
    done = place.build()
    assert (done.said["winner"], done.status("int8@vllm")) == ("base@vllm", "rejected")
    told = "1 of 14 layers asked for were left as they were: model.layers.1.self_attn.k_proj"
    assert told in done.reasons("int8@vllm")


def test_what_is_unusual_in_a_base_is_said_and_in_the_report(fresh: Callable[..., Place]) -> None:
    place = fresh(tune={"trials": 0}, publish=[], checkpoints={"int8": INT8})
    (place.root / "model" / "pytorch_model.bin").write_bytes(b"never read")
    done = place.build()
    note = "pytorch_model.bin beside the safetensors: pickled weights are never read"
    assert done.code == 0 and f"note: {note}" in done.err
    for name in ("report.md", "report.html", "package/README.md"):
        assert note in (place.artifacts / "latest" / name).read_text(), name
