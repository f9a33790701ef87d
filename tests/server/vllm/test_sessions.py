"""SageMaker's sessions begin, are named by requests, and end; each key has its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from octavo.serving.bounds.sessions import HEADER, MAX_SESSIONS, SECONDS, Sessions
from octavo.transport.errors import ApiError
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.make import Client, serving

PATH = "/invocations"
NEW, CLOSED = "x-amzn-sagemaker-new-session-id", "x-amzn-sagemaker-closed-session-id"
# What the SDKs of SageMaker accept.
FORM = re.compile(r"([0-9a-zA-Z-]+);\sExpires=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
PROMPT: dict[str, Any] = {"prompt": "The quick", "max_tokens": 3}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_directory(tmp_path)


async def began(client: Client, **headers: str) -> str:
    answer = await client.post(
        PATH, json={"requestType": "NEW_SESSION"}, headers={HEADER: "NEW_SESSION", **headers}
    )
    found = FORM.fullmatch(answer.headers[NEW])
    assert answer.status_code == 200
    assert found
    return found[1]


@in_loop
async def test_a_session_is_open_until_it_is_closed(directory: Path) -> None:
    async with serving(directory) as client:
        name = await began(client)
        assert await began(client) != name
        named = {HEADER: name}
        plain = (await client.post(PATH, json={**PROMPT, "temperature": 0})).json()
        answer = await client.post(PATH, json={**PROMPT, "temperature": 0}, headers=named)
        assert answer.json()["choices"] == plain["choices"]
        closed = await client.post(PATH, json={"requestType": "CLOSE"}, headers=named)
        assert (closed.status_code, closed.headers[CLOSED]) == (200, name)
        for body in (PROMPT, {"requestType": "CLOSE"}):
            answer = await client.post(PATH, json=body, headers=named)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "session_not_found"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"requestType": "CLOSE"}, {}, 424),
        ({"requestType": "CLOSE"}, {HEADER: "unknown"}, 400),
        ({"requestType": "OPEN"}, {}, 400),
        (PROMPT, {HEADER: "unknown"}, 400),
        (PROMPT, {HEADER: "NEW_SESSION"}, 200),
    ],
)
@in_loop
async def test_a_wrong_request_of_a_session_is_refused(
    directory: Path, body: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    async with serving(directory) as client:
        assert (await client.post(PATH, json=body, headers=headers)).status_code == status


@in_loop
async def test_a_key_knows_its_own_sessions_alone(directory: Path) -> None:
    async with serving(directory, api_keys=("one-key", "other-key")) as client:
        one, other = ({"authorization": f"Bearer {key}"} for key in ("one-key", "other-key"))
        name = await began(client, **one)
        for headers, status in ((other, 400), (one, 200)):
            answer = await client.post(PATH, json=PROMPT, headers={**headers, HEADER: name})
            assert answer.status_code == status


def test_sessions_end_and_are_limited() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    names = [sessions.create("one") for _ in range(MAX_SESSIONS)]
    with pytest.raises(ApiError) as refused:
        sessions.create("one")
    assert refused.value.status == 429
    sessions.check("other", sessions.create("other"))
    sessions.close("one", names[0])
    now = SECONDS - 1
    sessions.check("one", sessions.create("one"))
    now = SECONDS
    with pytest.raises(ApiError):
        sessions.check("one", names[1])
    assert len(sessions._open_of("one")) == 1
