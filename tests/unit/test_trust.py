"""What a consumer refuses: each way to tamper with a version or an alias, through the commands that people run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optpipe import bundle as bundles
from optpipe.backends.registries import Registry, at
from optpipe.cli import run
from optpipe.errors import PublishFailed
from optpipe.proofs import Notary, Policy, Signer, Trusted, sign
from optpipe.proofs.keys import new_key
from tests.bundles import small_bundle


class Consumer:
    """A registry with two signed versions, a home that trusts their signer, and the command line."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        self.where = root / "registry"
        self.registry = self.publisher()
        self.digests = [self.publish(text) for text in ("one", "two")]
        self.pulled = root / "pulled"
        assert self("pull", "tiny", str(self.pulled)) == 0

    def publisher(self) -> Registry:
        return at(str(self.where), notary=Notary(lambda line: None))

    def publish(self, text: str, *aliases: str) -> str:
        version = self.registry.upload(small_bundle(self.root / text, text))
        for alias in aliases or ("latest", "champion"):
            self.registry.move(version, alias, expected=self.registry.alias("tiny", alias), evidence="test")
        return version.digest

    def __call__(self, *words: str) -> int:
        self.capsys.readouterr()
        code = run([*words, "--registry", str(self.where)])
        self.out, self.err = self.capsys.readouterr()
        return code

    def refused(self, told: str, *words: str) -> None:
        """Exit 6, with the reason; a bundle's folder is what is looked at where nothing else is named."""
        assert self(*(words or ("verify", str(self.pulled)))) == 6, self.out + self.err
        assert told in self.err, self.err

    def restored(self, change: Callable[[Any], Any]) -> None:
        """The manifest written anew after a change, as who can write the folder would do."""
        change(self.pulled)
        bundles.write_manifest(self.pulled)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPTPIPE_SIGNING", "OPTPIPE_SIGNING_KEY", "OPTPIPE_TRUST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def consumer(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Consumer:
    (tmp_path / "place").mkdir()
    return Consumer(tmp_path / "place", capsys)


def test_a_signed_version_is_accepted_by_every_command(consumer: Consumer) -> None:
    for reference in ("tiny", "tiny@champion", f"tiny@{consumer.digests[0]}", str(consumer.pulled)):
        assert consumer("verify", reference) == 0 and "signed by key" in consumer.out


# ---------------------------------------------------------------- a version


def test_a_changed_byte_is_refused(consumer: Consumer) -> None:
    (consumer.pulled / "model.safetensors").write_text("twO")
    consumer.refused("model.safetensors: sha256")


def test_a_changed_byte_is_refused_also_under_a_manifest_that_fits(consumer: Consumer) -> None:
    consumer.restored(lambda folder: (folder / "model.safetensors").write_text("twO"))
    consumer.refused("did not sign this")


def test_a_file_added_is_refused(consumer: Consumer) -> None:
    (consumer.pulled / "modeling.py").write_text("import os")
    consumer.refused("modeling.py: not in the manifest: added")
    consumer.restored(lambda folder: None)
    consumer.refused("Extra files found")


def test_a_file_removed_is_refused(consumer: Consumer) -> None:
    (consumer.pulled / "recipe.resolved.yaml").unlink()
    consumer.refused("recipe.resolved.yaml: missing")
    consumer.restored(lambda folder: None)
    consumer.refused("Missing files")


def test_a_wrong_key_is_refused(consumer: Consumer, tmp_path: Path) -> None:
    private, public = new_key()
    (tmp_path / "other.pem").write_bytes(private)
    (tmp_path / "other.pub").write_bytes(public)
    consumer.refused("not trusted", "verify", str(consumer.pulled), "--key", str(tmp_path / "other.pub"))
    manifest, _ = bundles.read_manifest(consumer.pulled)
    assert manifest is not None
    signature = sign(bundles.signed(manifest), "tiny", Signer(tmp_path / "other.pem"))
    (consumer.pulled / bundles.SIGNATURE).write_bytes(signature)
    consumer.refused("not trusted for this model")
    assert consumer("verify", str(consumer.pulled), "--key", str(tmp_path / "other.pub")) == 0


def test_a_swapped_signature_is_refused(consumer: Consumer) -> None:
    other = consumer.registry.local(consumer.registry.resolve(f"tiny@{consumer.digests[0]}"))
    shutil.copy(other / bundles.SIGNATURE, consumer.pulled / bundles.SIGNATURE)
    consumer.refused("did not sign this")
    assert consumer("verify", str(consumer.pulled), "--allow-unsigned") == 6, "a signature that lies is no lack of one"


def test_no_signature_is_refused_unless_it_is_asked_for_and_then_said(consumer: Consumer) -> None:
    (consumer.pulled / bundles.SIGNATURE).unlink()
    consumer.refused("not signed")
    assert "--allow-unsigned" in consumer.err
    assert consumer("verify", str(consumer.pulled), "--allow-unsigned") == 0 and "not signed" in consumer.out
    assert consumer("verify", str(consumer.pulled), "--allow-unsigned", "--json") == 0
    told = json.loads(consumer.out)
    assert told["ok"] and not told["signed"] and told["signer"] is None


def test_the_provenance_of_another_run_is_refused(consumer: Consumer) -> None:
    other = consumer.registry.local(consumer.registry.resolve(f"tiny@{consumer.digests[0]}"))
    shutil.copy(other / "provenance.json", consumer.pulled / "provenance.json")
    consumer.refused("provenance.json: sha256")
    consumer.restored(lambda folder: None)
    consumer.refused("is of another run")
    private = Signer(Path(str(consumer.root.parent / "home" / "keys" / "signing.pem")))
    manifest, _ = bundles.read_manifest(consumer.pulled)
    assert manifest is not None
    (consumer.pulled / bundles.SIGNATURE).write_bytes(sign(bundles.signed(manifest), "tiny", private))
    consumer.refused("is of another run")
    assert "did not sign" not in consumer.err, "the signature itself holds now"


@pytest.mark.parametrize("text", ["[" * 100_000, "", "\x00", "{}", "[1]", "{" * 2000])
def test_files_that_were_made_to_hurt_are_refused_not_a_traceback(text: str, consumer: Consumer) -> None:
    for name in ("model.sig", "provenance.json", "optpipe.json", "recipe.resolved.yaml", "manifest.json"):
        (consumer.pulled / name).write_text(text)
        if name not in bundles.OUTSIDE:
            consumer.restored(lambda folder: None)
        for words in ((), ("--allow-unsigned",)):
            assert consumer("verify", str(consumer.pulled), *words) == 6
            assert "Traceback" not in consumer.err and "bug" not in consumer.err


def test_a_provenance_that_was_blown_up_is_not_read(consumer: Consumer) -> None:
    with (consumer.pulled / "provenance.json").open("wb") as file:
        file.truncate(1 << 26)
    consumer.restored(lambda folder: (folder / bundles.SIGNATURE).unlink())
    assert consumer("verify", str(consumer.pulled), "--allow-unsigned") == 6
    assert "more than" in consumer.err


def test_another_machine_needs_the_key_and_remembers_for_itself(
    consumer: Consumer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPTPIPE_HOME", str(consumer.root / "elsewhere"))
    consumer.refused("not trusted", "verify", "tiny")
    key = ("--key", str(home / "keys" / "signing.pub"))
    assert consumer("verify", "tiny", *key) == 0
    assert not (consumer.root / "elsewhere" / "keys").exists(), "who only looks needs no key"
    records(consumer)[-1].unlink()
    consumer.refused("an old record, played again", "verify", "tiny", *key)


def test_pull_refuses_before_it_brings_anything(consumer: Consumer, home: Path) -> None:
    (home / "trust.toml").unlink()
    consumer.refused("not to be trusted", "pull", "tiny", "here")
    consumer.refused("not trusted for this model", "pull", f"tiny@{consumer.digests[0]}", "here")
    assert not Path("here").exists()
    reference = f"tiny@{consumer.digests[0]}"
    assert consumer("pull", reference, str(consumer.root / "here"), "--allow-unsigned") == 0
    assert "warning" in consumer.err and "not trusted" in consumer.err


@pytest.mark.parametrize("reference", ["tiny", "folder"])
def test_serve_refuses_what_nobody_signed(reference: str, consumer: Consumer, home: Path) -> None:
    (home / "trust.toml").unlink()
    consumer.refused("trusted", "serve", str(consumer.pulled) if reference == "folder" else reference)


def test_the_registrys_own_copy_is_examined_too(consumer: Consumer) -> None:
    folder = consumer.registry.local(consumer.registry.resolve("tiny"))
    (folder / bundles.SIGNATURE).unlink()
    consumer.refused("not signed", "verify", "tiny")
    consumer.refused("not signed", "pull", "tiny", str(consumer.root / "again"))
    assert not (consumer.root / "again").exists()


# ---------------------------------------------------------------- aliases


def records(consumer: Consumer, alias: str = "latest") -> list[Path]:
    return sorted((consumer.where / "tiny" / "aliases" / alias).glob("*.json"))


def test_an_old_record_played_again_is_refused(consumer: Consumer) -> None:
    records(consumer)[-1].unlink()
    consumer.refused("an old record, played again", "pull", "tiny", str(consumer.root / "again"))
    consumer.refused("an old record, played again", "verify", "tiny", "--allow-unsigned")


def test_an_old_record_under_a_new_number_is_refused(consumer: Consumer) -> None:
    old = json.loads(records(consumer)[0].read_text())
    old["move"]["sequence"] = 9
    (consumer.where / "tiny" / "aliases" / "latest" / "000009.json").write_text(json.dumps(old))
    consumer.refused("did not sign this", "verify", "tiny")


def test_a_record_of_another_alias_or_model_is_refused(consumer: Consumer) -> None:
    moved = json.loads(records(consumer, "champion")[0].read_text())
    for changes in ({"alias": "latest", "sequence": 5}, {"alias": "stable"}):
        record = {**moved, "move": {**moved["move"], **changes}}
        folder = consumer.where / "tiny" / "aliases" / record["move"]["alias"]
        folder.mkdir(exist_ok=True)
        (folder / f"{record['move']['sequence']:06d}.json").write_text(json.dumps(record))
        consumer.refused("did not sign this", "verify", f"tiny@{record['move']['alias']}")


def test_an_unsigned_record_is_refused(consumer: Consumer) -> None:
    unsigned = at(str(consumer.where))
    version = unsigned.resolve(f"tiny@{consumer.digests[0]}")
    unsigned.move(version, "latest", expected=consumer.digests[1], evidence="by a stranger")
    consumer.refused("not signed", "verify", "tiny")
    assert consumer("verify", "tiny", "--allow-unsigned") == 0 and "warning: tiny@latest" in consumer.err


def test_a_signed_rollback_goes_back(consumer: Consumer) -> None:
    assert consumer("rollback", "tiny") == 0
    assert consumer("verify", "tiny@champion", "--json") == 0
    assert json.loads(consumer.out)["digest"] == consumer.digests[0]


def test_a_registry_made_anew_by_the_same_signer_goes_on_counting(consumer: Consumer) -> None:
    shutil.rmtree(consumer.where)
    shutil.rmtree(consumer.root / "one")
    consumer.publish("one")
    assert consumer("verify", "tiny") == 0
    assert records(consumer)[0].name == "000003.json"


def test_what_nobody_trusts_leaves_no_memory(consumer: Consumer, home: Path) -> None:
    seen = json.loads((home / "aliases-seen.json").read_text())
    record = json.loads(records(consumer)[-1].read_text())
    record["move"]["sequence"], record["signature"] = 10**6, None
    (consumer.where / "tiny" / "aliases" / "latest" / "1000000.json").write_text(json.dumps(record))
    assert consumer("verify", "tiny", "--allow-unsigned") == 0
    assert json.loads((home / "aliases-seen.json").read_text()) == seen


# ---------------------------------------------------------------- publishing


def test_what_a_stranger_signed_is_not_published_under_our_name(consumer: Consumer, tmp_path: Path) -> None:
    private, _ = new_key()
    (tmp_path / "stranger.pem").write_bytes(private)
    made = small_bundle(tmp_path / "made", "three")
    manifest, _ = bundles.read_manifest(made.path)
    assert manifest is not None
    signature = sign(bundles.signed(manifest), "tiny", Signer(tmp_path / "stranger.pem"))
    (made.path / bundles.SIGNATURE).write_bytes(signature)
    with pytest.raises(PublishFailed, match="not trusted") as error:
        consumer.registry.upload(made)
    assert "model.sig" in str(error.value)


def test_a_trusted_signature_is_kept_as_it_is(consumer: Consumer) -> None:
    folder = consumer.root / "two"
    before = (folder / bundles.SIGNATURE).read_bytes()
    assert consumer("publish", str(folder)) == 0
    assert (folder / bundles.SIGNATURE).read_bytes() == before


def test_the_same_version_again_keeps_its_published_signature(consumer: Consumer) -> None:
    folder = consumer.root / "two"
    before = (folder / bundles.SIGNATURE).read_bytes()
    (folder / bundles.SIGNATURE).unlink()
    assert consumer("publish", str(folder)) == 0
    assert (folder / bundles.SIGNATURE).read_bytes() == before


def test_what_this_machine_signed_goes_to_a_second_registry_whatever_the_policy(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team.toml").write_text("")
    monkeypatch.setenv("OPTPIPE_TRUST", str(tmp_path / "team.toml"))
    made = small_bundle(tmp_path / "made", "three")
    for number in range(2):
        at(str(tmp_path / f"registry-{number}"), notary=Notary(lambda line: None)).upload(made)


def test_a_policy_for_other_models_does_not_count(consumer: Consumer, home: Path) -> None:
    trusted = Trusted(home / "keys" / "signing.pub", models=("other-*",))
    registry = at(str(consumer.where), notary=Notary(print, Policy((trusted,), "test")))
    with pytest.raises(PublishFailed, match="not trusted for this model"):
        registry.resolve("tiny")
