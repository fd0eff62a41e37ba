"""Keyless signing up to where Sigstore's service would answer: the service here is a small server that refuses."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from optpipe.errors import EnvironmentMissing, PublishFailed
from optpipe.proofs import Policy, Signer, Trusted, check, choose_signer, sign
from tests.quiet import QuietServer

FILES = {"model.safetensors": "aa" * 32}
ISSUER = "https://issuer.test"
WHO = "https://ci.test/team/build.yml"


@dataclass
class Service:
    """Hands out an identity as GitHub's runner does, names itself as Fulcio, and refuses to certify."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        self.asked.append((path.partition("?")[0], authorization))
        if path.startswith("/token"):
            return 200, {"value": token()}
        if path.endswith("openid-configuration"):
            return 200, {"authorization_endpoint": self.url, "token_endpoint": self.url}
        return 403, {"message": "this identity gets no certificate here"}


def token() -> str:
    now = int(time.time())
    claims = {"iss": ISSUER, "sub": WHO, "aud": "sigstore", "iat": now, "exp": now + 600}
    parts = [json.dumps({"alg": "none"}), json.dumps(claims), "signature"]
    return ".".join(base64.urlsafe_b64encode(one.encode()).decode().rstrip("=") for one in parts)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            code, body = found.answer(self.path, self.headers.get("authorization") or "")
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None: ...

    server = QuietServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def sigstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Service) -> Path:
    """The public Sigstore's roots, with all its services at the small server; no network is asked."""
    store = resources.files("sigstore") / "_store" / "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev"
    signing = json.loads((store / "signing_config.v0.2.json").read_text())
    for services in ("caUrls", "oidcUrls", "rekorTlogUrls", "tsaUrls"):
        signing[services][0]["url"] = service.url
    config = {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": json.loads((store / "trusted_root.json").read_text()),
        "signingConfig": signing,
    }
    (tmp_path / "sigstore.json").write_text(json.dumps(config))
    for name in ("GITHUB_ACTIONS", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPTPIPE_SIGSTORE", str(tmp_path / "sigstore.json"))
    monkeypatch.setenv("OPTPIPE_SIGNING", "keyless")
    return tmp_path / "sigstore.json"


def test_without_an_identity_it_says_what_is_missing(service: Service) -> None:
    signer = choose_signer(print)
    assert signer == Signer(None)
    with pytest.raises(EnvironmentMissing, match="no identity") as error:
        sign(FILES, "tiny", signer)
    assert "id-token: write" in str(error.value) and service.asked == []


def test_the_jobs_identity_is_shown_to_sigstore_whose_refusal_is_told(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "runner-secret")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{service.url}/token?x=1")
    with pytest.raises(PublishFailed, match="Sigstore did not sign") as error:
        sign(FILES, "tiny", Signer(None))
    assert "403" in str(error.value)
    paths = [path for path, _ in service.asked]
    assert paths[0] == "/token" and paths[-1] == "/api/v2/signingCert"
    shown = service.asked[-1][1].removeprefix("Bearer ")
    claims = json.loads(base64.urlsafe_b64decode(shown.split(".")[1] + "=="))
    assert (claims["iss"], claims["sub"]) == (ISSUER, WHO)
    assert "runner-secret" not in str(error.value)


def certificate() -> bytes:
    """A signature whose certificate anybody could have made for himself."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "anybody")])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now)
    raw = made.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    document = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"certificate": {"rawBytes": base64.b64encode(raw).decode()}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(b"{}").decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": base64.b64encode(b"x").decode(), "keyid": ""}],
        },
    }
    return json.dumps(document).encode()


def test_a_certificate_of_ones_own_is_broken_where_an_identity_is_trusted_and_unknown_elsewhere(
    service: Service,
) -> None:
    trusted = Policy((Trusted(identity=WHO, issuer=ISSUER),), "trust.toml")
    proof = check(certificate(), FILES, "tiny", trusted)
    assert proof.status == "broken" and WHO in proof.told
    assert check(certificate(), FILES, "tiny", Policy((), "trust.toml")).status == "unknown"
    assert service.asked == []


def test_a_sigstore_that_was_named_must_be_there(sigstore: Path) -> None:
    sigstore.unlink()
    with pytest.raises(EnvironmentMissing, match=r"sigstore\.json"):
        check(certificate(), FILES, "tiny", Policy((Trusted(identity=WHO, issuer=ISSUER),)))
