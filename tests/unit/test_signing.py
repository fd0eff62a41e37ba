"""Signatures over digests with real keys and the real library, and the policy that says whose count."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe import bundle as bundles
from optpipe.errors import EnvironmentMissing, InputError
from optpipe.proofs import Policy, Signer, Trusted, check, choose_signer, load_policy, sign
from optpipe.proofs.keys import fingerprint, home_key, new_key
from optpipe.proofs.trust import read

DEEP = b"[" * 100_000
FILES = {"a.safetensors": "aa" * 32, "sub/b.json": "bb" * 32}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPTPIPE_SIGNING", "OPTPIPE_SIGNING_KEY", "OPTPIPE_SIGNING_KEY_PASSWORD", "OPTPIPE_TRUST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    private, public = new_key()
    (folder / f"{name}.pem").write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture
def signed(tmp_path: Path) -> tuple[bytes, Policy]:
    private, public = keys(tmp_path, "mine")
    return sign(FILES, "tiny", Signer(private)), Policy((Trusted(public),), "trust.toml")


def test_the_key_of_this_machine_is_made_once_readable_by_its_owner_and_trusted(home: Path) -> None:
    said: list[str] = []
    signer = choose_signer(said.append)
    assert signer == choose_signer(said.append) == Signer(home / "keys" / "signing.pem", home / "keys" / "signing.pub")
    assert len(said) == 1 and "made a signing key" in said[0]
    assert stat.S_IMODE((home / "keys" / "signing.pem").stat().st_mode) == 0o600
    (one,) = load_policy().trusted
    assert one.key == home / "keys" / "signing.pub" and one.models == ("*",)
    assert check(sign(FILES, "tiny", signer), FILES, "tiny", load_policy()).status == "trusted"


def test_a_key_that_was_named_is_trusted_here_at_its_first_use(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, _ = keys(tmp_path, "team")
    monkeypatch.setenv("OPTPIPE_SIGNING_KEY", str(private))
    said: list[str] = []
    signer = choose_signer(said.append)
    assert signer == choose_signer(said.append) and len(said) == 1 and "trusted" in said[0]
    assert signer and check(sign(FILES, "tiny", signer), FILES, "tiny", load_policy()).signed
    assert not (home / "keys" / "signing.pem").exists()


def test_a_policy_that_is_kept_elsewhere_is_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "team.toml").write_text("# ours")
    monkeypatch.setenv("OPTPIPE_TRUST", str(tmp_path / "team.toml"))
    said: list[str] = []
    choose_signer(said.append)
    assert (tmp_path / "team.toml").read_text() == "# ours" and "team.toml" in said[0]


def test_a_signer_that_was_taken_out_of_the_policy_stays_out(home: Path) -> None:
    home_key(print)
    (home / "trust.toml").write_text("")
    home_key(print)
    assert load_policy().trusted == ()


def test_a_signature_holds_for_its_digests_alone(signed: tuple[bytes, Policy]) -> None:
    signature, policy = signed
    proof = check(signature, FILES, "tiny", policy)
    assert proof.signed and proof.signer and proof.signer in proof.told
    changed = [FILES | {"a.safetensors": "ab" * 32}, FILES | {"c": "cc" * 32}, {"a.safetensors": "aa" * 32}, {}]
    assert {check(signature, files, "tiny", policy).status for files in changed} == {"broken"}


def test_every_changed_byte_of_a_signature_is_noticed(signed: tuple[bytes, Policy]) -> None:
    signature, policy = signed
    document = json.loads(signature)
    envelope = document["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"]).replace(b"aaaa", b"abab", 1)
    raw = bytearray(base64.b64decode(envelope["signatures"][0]["sig"]))
    raw[-1] ^= 1
    broken = (
        {**envelope, "payload": base64.b64encode(payload).decode()},
        {**envelope, "signatures": [{**envelope["signatures"][0], "sig": base64.b64encode(bytes(raw)).decode()}]},
        {**envelope, "signatures": []},
        {**envelope, "signatures": envelope["signatures"] * 2},
        {**envelope, "payloadType": "text/plain"},
    )
    for wrong in broken:
        text = json.dumps({**document, "dsseEnvelope": wrong}).encode()
        assert check(text, FILES, "tiny", policy).status == "broken"


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b"\xff", b'{"verificationMaterial": {"publicKey": {}}}', b"null", DEEP]
)
def test_what_is_no_signature_is_refused_not_a_traceback(text: bytes, signed: tuple[bytes, Policy]) -> None:
    assert check(text, FILES, "tiny", signed[1]).status == "broken"


def test_a_signature_without_its_keys_fingerprint_is_refused_and_prints_nothing(
    signed: tuple[bytes, Policy], capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(signed[0])
    document["verificationMaterial"]["publicKey"] = {"hint": ""}
    assert check(json.dumps(document).encode(), FILES, "tiny", signed[1]).status == "broken"
    assert capsys.readouterr().out == ""


def test_another_key_is_unknown_and_its_hint_swapped_for_a_trusted_one_is_broken(
    signed: tuple[bytes, Policy], tmp_path: Path
) -> None:
    private, _ = keys(tmp_path, "other")
    foreign = sign(FILES, "tiny", Signer(private))
    proof = check(foreign, FILES, "tiny", signed[1])
    assert proof.status == "unknown" and "trust.toml" in (proof.hint or "") and "--allow-unsigned" in (proof.hint or "")
    document = json.loads(foreign)
    document["verificationMaterial"] = json.loads(signed[0])["verificationMaterial"]
    assert check(json.dumps(document).encode(), FILES, "tiny", signed[1]).status == "broken"


def test_no_signature_is_unsigned(signed: tuple[bytes, Policy]) -> None:
    proof = check(None, FILES, "tiny", signed[1])
    assert proof.status == "unsigned" and not proof.signed


def test_a_signer_counts_only_for_the_models_that_it_is_trusted_for(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "team")
    policy = Policy((Trusted(public, models=("team-*",)),), "trust.toml")
    signature = sign(FILES, "x", Signer(private))
    assert check(signature, FILES, "team-llama", policy).status == "trusted"
    assert check(signature, FILES, "other", policy).status == "unknown"


def test_a_key_with_a_password_signs_with_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization as forms

    private, public = keys(tmp_path, "locked")
    key = forms.load_pem_private_key(private.read_bytes(), None)
    locked = forms.BestAvailableEncryption(b"secret")
    private.write_bytes(key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, locked))
    monkeypatch.setenv("OPTPIPE_SIGNING_KEY", str(private))
    with pytest.raises(InputError, match="password") as error:
        choose_signer(print)
    assert "OPTPIPE_SIGNING_KEY_PASSWORD" in str(error.value)
    monkeypatch.setenv("OPTPIPE_SIGNING_KEY_PASSWORD", "secret")
    signature = sign(FILES, "tiny", choose_signer(print) or Signer())
    assert check(signature, FILES, "tiny", Policy((Trusted(public),))).signed


def test_a_key_that_cannot_sign_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPIPE_SIGNING_KEY", str(tmp_path / "none.pem"))
    with pytest.raises(EnvironmentMissing, match=r"none\.pem"):
        choose_signer(print)
    (tmp_path / "text.pem").write_text("no key")
    monkeypatch.setenv("OPTPIPE_SIGNING_KEY", str(tmp_path / "text.pem"))
    with pytest.raises(InputError, match=r"text\.pem"):
        choose_signer(print)
    with pytest.raises(InputError, match=r"text\.pem"):
        sign(FILES, "tiny", Signer(tmp_path / "text.pem"))
    with pytest.raises(InputError, match="not a public key"):
        fingerprint(tmp_path / "text.pem")


def test_signing_can_be_left_out_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("OPTPIPE_SIGNING", "none")
    assert choose_signer(said.append) is None and "not signed" in said[0]
    monkeypatch.setenv("OPTPIPE_SIGNING", "keyles")
    with pytest.raises(InputError, match="keyless"):
        choose_signer(print)


def test_options_of_a_command_stand_in_for_the_policy(tmp_path: Path) -> None:
    _, public = keys(tmp_path, "mine")
    assert load_policy(key=public).trusted == (Trusted(public),)
    assert load_policy(identity="a@b.c", issuer="https://i").trusted == (Trusted(None, "a@b.c", "https://i"),)
    for wrong in ({"key": public, "identity": "a", "issuer": "b"}, {"identity": "a"}, {"issuer": "b"}):
        with pytest.raises(InputError, match="--"):
            load_policy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[signer]]\nkeys = 'x'", "did you mean 'key'"),
        ("[[signers]]\nkey = 'x'", "signers"),
        ("[[signer]]\nidentity = 'x'", "identity"),
        ("[[signer]]\nkey = 3", "texts"),
        ("signer = 3", "list"),
        ("[[signer", "TOML"),
        ("[[signer]]\nkey = 'x'\nidentity = 'y'\nissuer = 'z'", "needs"),
    ],
)
def test_a_wrong_policy_is_refused_with_its_place(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "trust.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=told) as error:
        read(path)
    assert "trust.toml" in str(error.value)


def test_a_policy_that_was_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_policy().trusted == ()
    monkeypatch.setenv("OPTPIPE_TRUST", str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match=r"none\.toml"):
        load_policy()


def test_model_signings_own_command_checks_a_bundle(tmp_path: Path) -> None:
    private, public = keys(tmp_path, "mine")
    folder = tmp_path / "bundle"
    (folder / "records").mkdir(parents=True)
    (folder / "model.safetensors").write_text("weights")
    (folder / "records" / "one.json").write_text("{}")
    manifest = bundles.write_manifest(folder)
    signature = sign(bundles.signed(manifest), "bundle", Signer(private), [bundles.SIGNATURE])
    (folder / bundles.SIGNATURE).write_bytes(signature)

    def by_hand() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "model_signing", "verify", "key", str(folder)]
        command += ["--signature", str(folder / bundles.SIGNATURE), "--public_key", str(public)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    done = by_hand()
    assert done.returncode == 0 and "succeeded" in done.stdout.lower(), done.stdout + done.stderr
    (folder / "records" / "one.json").write_text("[]")
    done = by_hand()
    assert done.returncode != 0 and "one.json" in done.stdout + done.stderr
