"""The console's page, put together from its files, with a policy that allows nothing else.

The page is one document: it loads nothing, from this server or from others, and its only requests
are those of the API. So no path but `/` needs to be readable without a key.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import NamedTuple

from octavo.serving import status_routes
from octavo.serving.exchange import Exchange

SCRIPTS = (
    *("base.js", "markdown.js", "message.js", "settings.js", "chat.js"),
    *("plot.js", "map.js", "timeline.js", "engine.js", "main.js"),
)
_HTML, _VARY = "text/html", (b"vary", b"Accept")


class Page(NamedTuple):
    """The document, and the headers that it is sent with."""

    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def _hash_of(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


@cache
def page() -> Page:
    """Return the page, whose files are read once."""
    files = resources.files(__package__).joinpath("files")
    style = files.joinpath("style.css").read_text("utf-8")
    parts = [files.joinpath(name).read_text("utf-8") for name in SCRIPTS]
    script = '"use strict";\n' + "\n".join(parts)
    html = files.joinpath("index.html").read_text("utf-8")
    html = html.replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; script-src {_hash_of(script)}; style-src {_hash_of(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    headers = (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cache-control", b"no-cache"),
        _VARY,
    )
    return Page(html.encode(), headers)


async def home(exchange: Exchange) -> None:
    """Show browsers the console; others get the server's name, for which Ollama's programs look."""
    if exchange.server.config.console and _HTML in exchange.headers.get("accept", ""):
        shown = page()
        await exchange.respond(shown.body, kind=b"text/html; charset=utf-8", headers=shown.headers)
    else:
        exchange.extra_headers.append(_VARY)
        await status_routes.root(exchange)
