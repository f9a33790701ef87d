"""Servers behind https, and a router that serves it."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from tests.route.make import CHAT, LIMIT, FakeServer, Site, run
from tests.server.http import certificates as pem


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory with a certificate, its key, and two authorities."""
    (tmp_path / "cert.pem").write_text(pem.ONE)
    (tmp_path / "key.pem").write_text(pem.ONE_KEY)
    (tmp_path / "ca.pem").write_text(pem.AUTHORITY)
    (tmp_path / "other.pem").write_text(pem.OTHER_AUTHORITY)
    return tmp_path


def secure_server(files: Path) -> FakeServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "cert.pem", files / "key.pem")
    return FakeServer(tls=context)


def test_a_server_behind_https(files: Path) -> None:
    server = secure_server(files)

    async def work(site: Site) -> None:
        for _ in range(2):
            assert (await site.post()).json() == {"port": server.port}

    run(work, server, upstream_ca_certs=files / "ca.pem")


def test_a_server_with_a_certificate_of_another_authority_gets_nothing(files: Path) -> None:
    server = secure_server(files)

    async def work(site: Site) -> None:
        assert site.router.upstreams[0].state() == "down"
        assert (await site.post()).status_code == 503
        site.router.upstreams[0].note_well()  # as if it had been another one before
        answer = await site.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
        assert not server.requests

    run(work, server, upstream_ca_certs=files / "other.pem", wait_seconds=0.0)


def test_a_router_that_serves_https(files: Path) -> None:
    server = FakeServer()

    async def work(site: Site) -> None:
        context = ssl.create_default_context(cadata=pem.AUTHORITY)
        url = f"https://127.0.0.1:{site.life.port}{CHAT}"
        async with httpx.AsyncClient(verify=context, timeout=LIMIT, trust_env=False) as client:
            answer = await client.post(url, json={"model": "m"})
        assert answer.json() == {"port": server.port}

    run(work, server, ssl_certfile=files / "cert.pem", ssl_keyfile=files / "key.pem")
