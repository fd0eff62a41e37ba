"""Whether a server can be reached at all, told in seconds: clients go on trying for half a minute before they say."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

LIMIT_S = 6.0
"""For the look-up of the name and one connection: a SYN that was lost is sent again after 1 s and 3 s."""
AGAIN_S = 0.5
PORTS = {"http": 80, "https": 443}


def unreachable(url: str, env: Mapping[str, str] = os.environ) -> str | None:
    """Why no connection to a URL's server, or to the proxy before it, comes about; None where one does."""
    asked = _proxy(url, env) or url
    parts = urlsplit(asked if "://" in asked else f"http://{asked}")
    host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 80)
    why: list[str] = []
    thread = threading.Thread(target=_connect, args=(host, port, why), daemon=True)  # a look-up takes no time limit
    thread.start()
    thread.join(LIMIT_S)
    told = f"no answer in {LIMIT_S:.0f} s" if thread.is_alive() else why[-1] if why else None
    return told and f"{host}:{port}: {told}"


def _connect(host: str, port: int, why: list[str]) -> None:
    """One connection, and another after a moment: names fail to be looked up now and then."""
    for pause in (0.0, AGAIN_S):
        time.sleep(pause)
        try:
            socket.create_connection((host, port), LIMIT_S).close()
        except OSError as error:
            why.append(error.strerror or str(error))
        else:
            why.clear()
            return


def _proxy(url: str, env: Mapping[str, str]) -> str | None:
    """The proxy that clients take for a URL, from the usual variables."""
    said = {key.lower(): value for key, value in env.items() if key.lower().endswith("_proxy") and value}
    if proxy_bypass(urlsplit(url).netloc, {"no": said["no_proxy"]} if "no_proxy" in said else {}):
        return None
    return said.get(f"{urlsplit(url).scheme}_proxy") or said.get("all_proxy")
