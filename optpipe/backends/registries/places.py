"""The form of what names a registry: a typo in it ends before anything is asked of a network."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from optpipe.errors import InputError

PLACE = "registry"
HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|[0-9a-f:]+", re.ASCII)
OCI_PATH = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
"""A repository's name (OCI distribution specification 1.1)."""
BUCKET = re.compile(r"[a-zA-Z0-9._-]{1,255}|arn:aws[a-z-]*:s3[a-z0-9:/._-]+", re.ASCII)
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)


def split(url: str) -> SplitResult:
    """The parts of a registry's URL; InputError where they cannot be told apart, or hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is no URL: {error}", place=PLACE, hint="write KIND://HOST[:PORT]/PATH") from None
    if "@" in parts.netloc:
        raise InputError("a URL with a user or password in it", place=PLACE, hint="set them in the environment")
    return parts


def checked_url(url: str, example: str, schemes: tuple[str, ...] = ("https", "http")) -> SplitResult:
    """The parts of a server's URL. InputError where it has another scheme or no host."""
    parts = split(url)
    if parts.scheme not in schemes or not HOST.fullmatch(parts.hostname or ""):
        raise InputError(f"{url!r} is no URL of a server", place=PLACE, hint=f"e.g. {example}")
    return parts


def checked_part(text: str, form: re.Pattern[str], what: str) -> str:
    """`text` if it can be `what`, else an InputError."""
    if not form.fullmatch(text):
        raise InputError(f"{text!r} cannot be {what}", place=PLACE, hint=f"known by: {FORMS[what]}")
    return text


FORMS = {
    "a bucket": "letters, digits, '.', '_' and '-', e.g. s3://models/team",
    "a repository's path": "lower-case letters, digits, '.', '_', '-' and '/', e.g. oci://registry.example.com/models",
    "an owner on the hub": "letters, digits, '.', '_' and '-', e.g. hf://my-team",
}
