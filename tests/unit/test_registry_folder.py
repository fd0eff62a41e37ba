"""The folder registry: versions appear whole or not at all, aliases move last and only as expected."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe import bundle as bundles
from optpipe.backends.registries import Folder, Registry, at, connect
from optpipe.errors import InputError, OptpipeError, PublishFailed
from optpipe.records import Bundle, Challenge
from optpipe.stages.publish import publish

NOBODY = Challenge(None, passed=True, evidence="test")


def make(root: Path, content: str, name: str = "tiny") -> Bundle:
    folder = root / f"bundle-{content}"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "vllm.yaml").write_text("max-num-seqs: 8\n")
    for part in range(3):
        (folder / f"model-{part}.safetensors").write_text(f"{content} {part}")
    manifest = bundles.write_manifest(folder)
    return Bundle(name, folder, manifest.digest, "sha256:" + "1" * 64, manifest.bytes)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return at(str(tmp_path / "registry"))


def ship(registry: Registry, bundle: Bundle, *aliases: str) -> None:
    version = registry.upload(bundle)
    for alias in aliases:
        registry.move(version, alias, expected=registry.alias(bundle.name, alias), evidence="test")


# ---------------------------------------------------------------- versions


def test_what_is_pulled_is_what_was_published(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    ship(registry, bundle, "latest")
    version = registry.pull("tiny", tmp_path / "here")
    assert version.digest == bundle.digest
    assert bundles.verify(tmp_path / "here", bundle.digest) == ()
    (tmp_path / "here" / "engine" / "vllm.yaml").write_text("writable")


def test_an_edit_of_the_bundle_does_not_reach_the_version(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    version = registry.upload(bundle)
    (bundle.path / "model-0.safetensors").write_text("edited")
    assert bundles.verify(registry.local(version), bundle.digest) == ()
    assert not (registry.local(version) / "model-0.safetensors").stat().st_mode & 0o222


def test_the_same_digest_again_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    first = registry.upload(bundle)
    before = registry.local(first).stat().st_mtime_ns
    assert registry.upload(bundle) == first
    assert registry.local(first).stat().st_mtime_ns == before


def test_a_bundle_that_was_changed_is_not_published(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    (bundle.path / "model-1.safetensors").write_text("A 1")
    with pytest.raises(PublishFailed, match=r"model-1\.safetensors"):
        registry.upload(bundle)
    assert registry.listing() == {"models": {}}


def test_a_broken_upload_goes_on_with_what_is_missing(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    incoming = Path(registry.where) / "tiny" / "incoming" / bundle.digest.removeprefix("sha256:")
    whole, torn = incoming / "model-0.safetensors", incoming / "model-1.safetensors"
    bundles.copy_file(bundle.path / "model-0.safetensors", whole)
    torn.write_text("a")
    (incoming / "left-over").symlink_to("nowhere")
    kept = whole.stat().st_ino
    assert registry.listing() == {"models": {}}
    version = registry.upload(bundle)
    assert (registry.local(version) / "model-0.safetensors").stat().st_ino == kept
    assert bundles.verify(registry.local(version), bundle.digest) == ()
    assert list((Path(registry.where) / "tiny" / "incoming").iterdir()) == []


def test_a_damaged_version_is_not_taken_for_published(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    (registry.local(registry.upload(bundle)) / "model-2.safetensors").unlink()
    with pytest.raises(PublishFailed, match=r"model-2\.safetensors: missing"):
        registry.upload(bundle)


def test_a_damaged_version_is_not_pulled(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    ship(registry, bundle, "latest")
    file = registry.local(registry.resolve("tiny")) / "model-2.safetensors"
    file.chmod(0o644)
    file.write_text("A 2")
    with pytest.raises(PublishFailed, match=r"model-2\.safetensors"):
        registry.pull("tiny", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_pull_does_not_write_over_other_files(registry: Registry, tmp_path: Path) -> None:
    ship(registry, make(tmp_path, "a"), "latest")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="something else"):
        registry.pull("tiny", tmp_path / "here")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mine.txt"]


def test_pull_again_is_nothing_to_do(registry: Registry, tmp_path: Path) -> None:
    ship(registry, make(tmp_path, "a"), "latest")
    assert registry.pull("tiny", tmp_path / "here") == registry.pull("tiny", tmp_path / "here")


# ---------------------------------------------------------------- references


def test_each_form_of_a_reference_finds_the_version(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    ship(registry, bundle, "latest", "champion")
    for reference in ("tiny", "tiny@champion", f"tiny@{bundle.digest}", f"tiny@{bundle.digest[:15]}"):
        assert registry.resolve(reference).digest == bundle.digest
    assert registry.local(registry.resolve("registry:tiny@champion")).is_dir()


@pytest.mark.parametrize(
    "reference",
    [
        "../tiny",
        "tiny/..",
        "/etc",
        "Tiny",
        "",
        "tiny@",
        "tiny@../x",
        "tiny@sha256:abc",
        "tiny@sha256:ABCDEF12",
        ".x",
        "a..b",
    ],
)
def test_a_reference_that_is_not_one_is_refused(registry: Registry, tmp_path: Path, reference: str) -> None:
    ship(registry, make(tmp_path, "a"), "latest")
    with pytest.raises(InputError):
        registry.resolve(reference)


def test_unknown_names_and_aliases_end_with_a_close_match(registry: Registry, tmp_path: Path) -> None:
    ship(registry, make(tmp_path, "a"), "champion")
    with pytest.raises(InputError, match="did you mean 'tiny'"):
        registry.resolve("tinny@champion")
    with pytest.raises(InputError, match="did you mean 'champion'"):
        registry.resolve("tiny@champoin")


def test_a_shortened_digest_must_mean_one_version(registry: Registry, tmp_path: Path) -> None:
    ship(registry, make(tmp_path, "a"), "latest")
    with pytest.raises(InputError, match="0 versions"):
        registry.resolve("tiny@sha256:00000000")


# ---------------------------------------------------------------- aliases


def test_an_alias_moves_only_from_what_is_expected(registry: Registry, tmp_path: Path) -> None:
    old, new, late = (registry.upload(make(tmp_path, content)) for content in "abc")
    registry.move(old, "champion", expected=None, evidence="first")
    registry.move(new, "champion", expected=old.digest, evidence="better")
    with pytest.raises(PublishFailed, match=new.digest):
        registry.move(late, "champion", expected=old.digest, evidence="measured against the old one")
    assert registry.alias("tiny", "champion") == new.digest


def test_rollback_goes_back_step_by_step(registry: Registry, tmp_path: Path) -> None:
    versions = [registry.upload(make(tmp_path, content)) for content in "abc"]
    for before, version in zip([None, *versions], versions):
        registry.move(version, "champion", expected=before.digest if before else None, evidence="test")
    assert registry.rollback("tiny", "champion", evidence="bad") == versions[1]
    assert registry.rollback("tiny", "champion", evidence="worse") == versions[0]
    with pytest.raises(InputError, match="nothing but"):
        registry.rollback("tiny", "champion", evidence="none left")
    moves = [event.move.digest for event in registry.history("tiny")]
    assert moves == [versions[number].digest for number in (0, 1, 2, 1, 0)]


def test_a_move_whose_process_died_halfway_is_no_move(registry: Registry, tmp_path: Path) -> None:
    first, second = (registry.upload(make(tmp_path, content)) for content in "ab")
    registry.move(first, "champion", expected=None, evidence="one")
    (Path(registry.where) / "tiny" / "aliases" / "champion" / ".half").write_text('{"move": {"al')
    registry.move(second, "champion", expected=first.digest, evidence="two")
    assert [kept.move.evidence for kept in registry.history("tiny")] == ["one", "two"]


def test_each_move_names_the_record_before_it(registry: Registry, tmp_path: Path) -> None:
    ship(registry, make(tmp_path, "a"), "champion")
    ship(registry, make(tmp_path, "b"), "champion")
    one, two = registry.history("tiny")
    assert (one.move.after, two.move.after) == (None, one.move.ident)
    assert (two.move.previous, two.move.digest) == (one.move.digest, registry.alias("tiny", "champion"))


def test_a_record_that_is_none_is_refused(registry: Registry, tmp_path: Path) -> None:
    ship(registry, make(tmp_path, "a"), "champion")
    path = Path(registry.where) / "tiny" / "aliases" / "champion" / "000001.json"
    text = path.read_text()
    for wrong in (text[:30], text.replace("sha256:", "sha256:zz"), "{}"):
        path.chmod(0o644)
        path.write_text(wrong)
        with pytest.raises(PublishFailed, match="not a record of a move"):
            registry.alias("tiny", "champion")


def claim(root: Path, digest: str, answers: multiprocessing.Queue[str]) -> None:
    registry = at(str(root))
    try:
        registry.move(registry.resolve(f"tiny@{digest}"), "champion", expected=None, evidence="race")
        answers.put("won")
    except OptpipeError as error:
        answers.put(type(error).__name__)


def test_of_two_processes_one_wins_the_alias(registry: Registry, tmp_path: Path) -> None:
    versions = [registry.upload(make(tmp_path, str(number))) for number in range(4)]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    racers = [context.Process(target=claim, args=(Path(registry.where), v.digest, answers)) for v in versions]
    for racer in racers:
        racer.start()
    told = sorted(answers.get(timeout=30) for _ in racers)
    for racer in racers:
        racer.join()
    assert told == ["AliasMoved"] * 3 + ["won"]
    assert len(registry.history("tiny")) == 1


# ---------------------------------------------------------------- the stage


def test_the_first_version_becomes_latest_and_champion(registry: Registry, tmp_path: Path) -> None:
    open_verdict = Challenge(None, passed=False, evidence="test")
    assert publish(make(tmp_path, "0"), Folder("folder"), Path(registry.where), open_verdict).aliases == ("latest",)
    published = publish(make(tmp_path, "a"), Folder("folder"), Path(registry.where), NOBODY)
    assert published.aliases == ("latest", "champion")
    assert Path(published.location).is_dir()


def test_the_champion_stays_unless_it_was_beaten(registry: Registry, tmp_path: Path) -> None:
    first = publish(make(tmp_path, "a"), Folder("folder"), Path(registry.where), NOBODY)
    lost = Challenge(first.digest, passed=False, evidence="10-confirm.json")
    settings = Folder("folder", promote="champion")
    assert publish(make(tmp_path, "b"), settings, Path(registry.where), lost).aliases == ("latest",)
    assert registry.alias("tiny", "champion") == first.digest
    won = Challenge(first.digest, passed=True, evidence="10-confirm.json")
    assert publish(make(tmp_path, "c"), Folder("folder"), Path(registry.where), won).aliases == ("latest",)
    assert publish(make(tmp_path, "d"), settings, Path(registry.where), won).aliases == ("latest", "champion")


def test_a_win_over_a_champion_that_has_gone_does_not_count(registry: Registry, tmp_path: Path) -> None:
    settings = Folder("folder", promote="champion")
    first = publish(make(tmp_path, "a"), settings, Path(registry.where), NOBODY)
    won = Challenge(first.digest, passed=True, evidence="test")
    publish(make(tmp_path, "b"), settings, Path(registry.where), won)
    with pytest.raises(PublishFailed, match="somebody else moved it"):
        publish(make(tmp_path, "c"), settings, Path(registry.where), won)


def test_publishing_twice_is_the_same_as_once(registry: Registry, tmp_path: Path) -> None:
    bundle = make(tmp_path, "a")
    settings = Folder("folder", promote="champion")
    first = publish(bundle, settings, Path(registry.where), NOBODY)
    assert publish(bundle, settings, Path(registry.where), NOBODY) == first
    assert registry.listing() == {
        "models": {
            "tiny": {
                "aliases": {"champion": bundle.digest, "latest": bundle.digest},
                "versions": [bundle.digest],
            }
        }
    }
    assert len(registry.history("tiny")) == 2


def test_a_recipe_may_name_another_folder(tmp_path: Path) -> None:
    connect(Folder("folder", path=str(tmp_path / "mine")), tmp_path / "default").upload(make(tmp_path, "a"))
    assert (tmp_path / "mine" / "tiny" / "versions").is_dir()
    assert not (tmp_path / "default").exists()


def test_the_settings_refuse_unknown_keys() -> None:
    from pydantic import TypeAdapter, ValidationError

    adapter = TypeAdapter(Folder)
    settings = adapter.validate_python({"registry": "folder", "promote": "champion"})
    assert settings == Folder("folder", None, "champion")
    with pytest.raises(ValidationError, match="promot"):
        adapter.validate_python({"registry": "folder", "promot": "champion"})
    assert "description" in json.dumps(adapter.json_schema()["properties"]["promote"])


# ---------------------------------------------------------------- death at any moment


def test_a_killed_publish_leaves_no_half_version_and_goes_on(registry: Registry, tmp_path: Path) -> None:
    folder = tmp_path / "big"
    folder.mkdir()
    for number in range(60):
        (folder / f"part-{number}.safetensors").write_bytes(bytes([number]) * 400_000)
    manifest = bundles.write_manifest(folder)
    code = (
        "import sys; from pathlib import Path; from optpipe.records import Bundle;"
        "from optpipe.backends.registries import Folder; from optpipe.records import Challenge;"
        "from optpipe.stages.publish import publish;"
        "print('ready', flush=True);"
        "publish(Bundle('tiny', Path(sys.argv[1]), sys.argv[2], '', 0), Folder(), Path(sys.argv[3]),"
        " Challenge(None, True, 'test'))"
    )
    words = [sys.executable, "-c", code, str(folder), manifest.digest, str(Path(registry.where))]
    killed = 0
    for delay in (0.01, 0.03, 0.06, 0.1, 0.2, 20.0):
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
        for model in registry.listing()["models"].values():
            assert model["versions"] == [manifest.digest]
            assert bundles.verify(registry.local(registry.resolve(f"tiny@{manifest.digest}")), manifest.digest) == ()
            assert set(model["aliases"].values()) <= {manifest.digest}
    assert killed > 0
    assert set(registry.listing()["models"]["tiny"]["aliases"]) == {"latest", "champion"}
    assert len(registry.history("tiny")) == 2


# ---------------------------------------------------------------- a version as a source


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_published_version_is_a_source(
    tmp_path: Path, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optpipe.backends.registries.publishing import puller
    from optpipe.model import fetching, sources
    from optpipe.proofs import Notary

    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    bundle, registry = make(tmp_path, "a"), at(str(tmp_path / "registry"), notary=Notary(print))
    ship(registry, bundle, "champion")
    named = f"{registry.where}/tiny" if elsewhere else "tiny"
    default = tmp_path / "none" if elsewhere else Path(registry.where)
    source = sources.parse(f"registry:{named}@champion")
    fetched = fetching.fetch(source, tmp_path / "home", print, pull=puller(default, print))
    assert bundles.verify(fetched.path, bundle.digest) == ()


def test_what_names_no_registry_is_refused_with_what_is_known() -> None:
    for where, told in {"ocy://host": "did you mean 'oci'", "oci://user:secret@host/x": "environment"}.items():
        with pytest.raises(InputError) as error:
            at(where)
        assert told in str(error.value) and "secret" not in str(error.value)
