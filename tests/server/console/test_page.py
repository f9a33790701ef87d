"""The page at `/`: browsers get it, Ollama's programs do not, and it may load nothing."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from octavo.server.console.page import SCRIPTS, page
from tests.server.durable.make import KEY, in_loop
from tests.server.make import serving

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
FILES = Path("octavo/server/console/files")


@in_loop
async def test_a_browser_gets_the_console_without_a_key(directory: Path) -> None:
    async with serving(directory, api_keys=(KEY,)) as client:
        response = await client.get("/", headers=BROWSER)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["vary"] == "Accept"
        assert response.text.startswith("<!doctype html>")
        assert (await client.head("/", headers=BROWSER)).headers["vary"] == "Accept"


@pytest.mark.parametrize("accept", [None, "*/*", "application/json"])
@in_loop
async def test_other_programs_get_the_server_s_name(directory: Path, accept: str | None) -> None:
    async with serving(directory) as client:
        headers = {} if accept is None else {"accept": accept}
        for method in ("GET", "HEAD"):
            response = await client.request(method, "/", headers=headers)
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/plain; charset=utf-8"
            assert response.headers["vary"] == "Accept"
        assert (await client.get("/", headers=headers)).text == "Octavo is running\n"


@in_loop
async def test_the_console_can_be_switched_off(directory: Path) -> None:
    async with serving(directory, console=False) as client:
        assert (await client.get("/", headers=BROWSER)).text == "Octavo is running\n"


def test_the_policy_allows_the_page_s_own_parts_alone() -> None:
    text = page().body.decode()
    policy = dict(page().headers)[b"content-security-policy"].decode()
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert (rules["connect-src"], rules["frame-ancestors"]) == ("'self'", "'none'")
    for name, rule in (("script", "script-src"), ("style", "style-src")):
        (part,) = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        digest = b64encode(sha256(part.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert "unsafe" not in policy


def test_the_page_names_no_other_host_and_makes_no_html_of_texts() -> None:
    for path in FILES.iterdir():
        text = path.read_text()
        found = re.findall(r"https?://[^'\"\s)]+", text)
        assert set(found) <= {"http://www.w3.org/2000/svg"}, path
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, path
        assert not re.search(r"\son[a-z]+=|style=", text) or path.suffix == ".js", path


def test_every_script_is_part_of_the_page() -> None:
    assert {path.name for path in FILES.glob("*.js")} == {*SCRIPTS}
