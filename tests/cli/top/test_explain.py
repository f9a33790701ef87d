"""`octavo explain`: a request of a real server in words, and errors that say what to do."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.commands import FAILED, OK, USAGE
from octavo.cli.top.explain import _REASONS, explained
from octavo.core import stats
from tests.cli.chat.fake_server import serving as other_server
from tests.server.durable.make import KEY
from tests.server.engine import make_directory
from tests.server.make import listening

FOUND: dict[str, Any] = {
    "request_id": "why\x1b]0;x\x07slow",
    "outcome": "finished",
    "total_ms": 2400.0,
    "time_to_first_byte_ms": 1800.0,
    "timeline": [
        {"what": "template", "at_ms": 0.0, "took_ms": 0.0},
        {"what": "queue", "at_ms": 0.0, "took_ms": 1200.0, "reasons_ms": {"slots": 1200.0}},
        {"what": "prefill", "at_ms": 1200.0, "took_ms": 600.0, "from_token": 24, "to_token": 1048},
        {"what": "decode", "at_ms": 1800.0, "took_ms": 600.0, "steps": 16},
        {"what": "preemptions", "at_ms": 2400.0, "took_ms": 0.0, "count": 2, "lost": 30},
    ],
    "prompt_tokens": 1048,
    "cached_tokens": 24,
    "completion_tokens": 16,
    "drafted_tokens": 0,
    "cause": "1200.0 of 2400.0 ms (50 %) went into waiting; a larger max_num_seqs reduces it.",
}
HEAD = (
    "why?]0;x?slow: finished, 2.40 s in all, first byte after 1.80 s, "
    "1,048 prompt tokens (24 cached), 16 generated"
)


def test_an_explanation_is_a_table_of_phases_and_a_sentence() -> None:
    assert explained(FOUND).splitlines() == [
        HEAD,
        "",
        "PHASE               AT      TOOK",
        "engine's queue  0.0 ms    1.20 s  |............            |  for a slot 1.20 s",
        "prompt          1.20 s  600.0 ms  |            ######      |  tokens 24-1,048",
        "generating      1.80 s  600.0 ms  |                  >>>>>>|  16 steps",
        "preemptions     2.40 s    0.0 ms  |                       #|  2, 30 tokens lost",
        "",
        "1200.0 of 2400.0 ms (50 %) went into waiting; a larger --max-num-seqs reduces it.",
    ]


def test_each_reason_to_wait_has_words() -> None:
    waits = {*stats.REASONS, *stats.OUTSIDE, stats.FETCH, stats.RESTART}
    assert waits == set(_REASONS)


def test_a_request_that_runs_has_no_cause_yet() -> None:
    text = explained({**FOUND, "outcome": "running", "time_to_first_byte_ms": None})
    assert "first byte" not in text
    assert text.endswith("It is still running; its phases in the engine are known at its end.\n")


def complete(url: str, name: str) -> str:
    """Ask for a completion under a name, and return the id of the answer."""
    request = urllib.request.Request(
        f"{url}/v1/completions",
        json.dumps({"prompt": "a b", "max_tokens": 2}).encode(),
        {
            "authorization": f"Bearer {KEY}",
            "content-type": "application/json",
            "x-request-id": name,
        },
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(json.load(response)["id"])


def test_a_request_to_a_real_server_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(make_directory(tmp_path), api_keys=(KEY,)) as life:
        url = f"http://127.0.0.1:{life.port}"
        assert main(["explain", "mine", "--url", url]) == FAILED
        assert "put it into OCTAVO_API_KEY" in capsys.readouterr().err
        monkeypatch.setenv("OCTAVO_API_KEY", KEY)
        assert main(["explain", "--url", url]) == OK
        assert "no request has ended yet" in capsys.readouterr().out
        answer = complete(url, "mine")
        for name in ("mine", answer):
            assert main(["explain", name, "--url", f"{url}/v1"]) == OK
            text = capsys.readouterr().out
            assert text.startswith("mine: finished, ")
            assert "2 generated" in text
        assert main(["explain", "mine", "--json", "--url", url]) == OK
        assert json.loads(capsys.readouterr().out)["request_id"] == "mine"
        assert main(["explain", "--url", url]) == OK
        head, row, hint = capsys.readouterr().out.splitlines()
        assert head.startswith("REQUEST")
        assert row.startswith("mine ")
        assert "octavo explain REQUEST" in hint
        assert main(["explain", "--json", "--url", url]) == OK
        assert json.loads(capsys.readouterr().out)[0]["id"] == "mine"
        assert main(["explain", "no/such one", "--url", url]) == FAILED
        told = capsys.readouterr().err
        assert "there is no request 'no/such one' among the last" in told
        assert "`octavo explain` lists the last ones" in told


def test_a_server_without_explanations_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with listening(make_directory(tmp_path), enable_explain=False) as life:
        assert main(["explain", "mine", "--url", f"http://127.0.0.1:{life.port}"]) == FAILED
    assert "explanations are disabled on this server (--no-explain)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code", "message"),
    [
        ("127.0.0.1:1", FAILED, "start one with `octavo serve MODEL`"),
        ("ftp://x", USAGE, "neither http nor https"),
    ],
)
def test_a_url_without_a_server_is_an_error(
    capsys: pytest.CaptureFixture[str], url: str, code: int, message: str
) -> None:
    assert main(["explain", "mine", "--url", url]) == code
    assert message in capsys.readouterr().err


def test_another_server_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with other_server({}) as server:
        assert main(["explain", "mine", "--url", server.url]) == FAILED
    assert "explains no requests" in capsys.readouterr().err
