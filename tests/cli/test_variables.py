"""A variable that another server reads is followed, refused, or named: none is neglected."""

from __future__ import annotations

import pytest

from octavo import env
from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.parsing import UsageError
from octavo.cli.server_options import server_settings
from octavo.options import foreign
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError

KEYS = ("OCTAVO_API_KEY", "VLLM_API_KEY", "LLAMA_API_KEY")
KEY = "a-long-enough-key"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in env.set_variables():
        is_known = name in foreign.REFUSED or foreign.advice_on([name])
        if name in KEYS or is_known:
            monkeypatch.delenv(name)


def server(*words: str) -> ServerSettings:
    return server_settings(make_parser(COMMANDS["serve"]).parse_args(words))


@pytest.mark.parametrize(
    ("name", "value", "keys"),
    [
        ("VLLM_API_KEY", KEY, (KEY,)),
        ("VLLM_API_KEY", f"{KEY},more", (f"{KEY},more",)),  # vLLM has one
        ("LLAMA_API_KEY", f"{KEY}, another-key", (KEY, "another-key")),
    ],
)
def test_a_server_is_closed_by_the_key_of_another_servers_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, keys: tuple[str, ...]
) -> None:
    monkeypatch.setenv(name, value)
    assert server().api_keys == keys
    assert server("--host", "0.0.0.0").api_keys == keys


def test_own_keys_replace_those_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    assert server("--api-key", "own-key-1").api_keys == ("own-key-1",)
    monkeypatch.setenv("OCTAVO_API_KEY", "own-key-2")
    assert server().api_keys == ("own-key-2",)


@pytest.mark.parametrize("name", KEYS[1:])
def test_a_key_that_is_blank_opens_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, " ")
    with pytest.raises(ServerSettingsError, match="an API key is empty"):
        server()


@pytest.mark.parametrize("name", foreign.REFUSED)
def test_what_would_protect_another_server_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "/some/file")
    with pytest.raises(UsageError, match=f"^{name} is set, and has no effect here"):
        server()
    server("--api-key", KEY, "--ssl-certfile", "c")  # it is protected in another way


def test_variables_without_effect_are_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server()
    assert not caplog.records
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "4096")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")  # nothing is ever sent
    assert server().is_local
    (record,) = caplog.records
    assert "OLLAMA_HOST (give --host and --port)" in record.getMessage()
    assert "LLAMA_ARG_CTX_SIZE (" in record.getMessage()
    assert "VLLM_NO_USAGE_STATS" not in record.getMessage()


def test_flags_that_are_named_instead_exist() -> None:
    known = make_parser(COMMANDS["serve"]).flags()
    reasons = [*foreign.WITHOUT_EFFECT.values()]
    reasons += [reason for _, reason in foreign.REFUSED.values()]
    named = [word.strip(",;") for reason in reasons for word in reason.split() if "--" in word]
    assert named
    assert set(named) <= set(known)
