"""The console in a real Chromium, against servers with the default model.

`make test-console` runs this file, and leaves the pictures of docs/console.md in build/console.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.browser import Browser, started
from tests.console.servers import Server, ask, serving

PICTURES = Path("build/console")
KEY = "a-key-of-the-tests"
IS_IDLE = "return !running && messages.length === arguments[0] && !messages.at(-1).error"
# Gives a conversation's requests answers of the test's own.
SCRIPTED = """
window.sent = [];
const real = window.fetch;
window.fetch = (url, options) => {
  if (!String(url).endsWith('/chat/completions')) return real(url, options);
  window.sent.push(JSON.parse(options.body));
  const chunks = answers.shift().map((each) => `data: ${JSON.stringify(each)}\\n\\n`);
  return Promise.resolve(new Response([...chunks, 'data: [DONE]\\n\\n'].join('')));
};
const answers = arguments[0];
"""
CONTRAST = """
const shine = (text) => {
  const sheet = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const pen = sheet.getContext('2d');
  pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
  const [r, g, b] = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map((each) => {
    const share = each / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const style = getComputedStyle(document.documentElement);
const of = (name) => shine(style.getPropertyValue(`--${name}`));
return arguments[0].map(([text, ground]) => {
  const [one, other] = [of(text), of(ground)].sort((a, b) => b - a);
  return [text, ground, (one + 0.05) / (other + 0.05)];
});
"""
NAMELESS = """
const all = document.querySelectorAll('button, input, textarea, select, a, canvas, svg[role]');
const named = (each) => each.ariaLabel || each.labels?.length || each.textContent.trim();
return [...all].filter((each) => !named(each)).map((each) => each.outerHTML);
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with started() as window:
        yield window


@pytest.fixture
def page(window: Browser, server: Server) -> Iterator[Browser]:
    """Yield a fresh page of the server's, which must have no problems in the end."""
    window.size(1280, 800)
    window.scheme("light")
    window.open(server.url)
    window.run("sessionStorage.clear(); location.hash = ''; location.reload()")
    window.wait("return $('model').value !== '' && latest !== null")
    window.problems()
    yield window
    assert window.problems() == []


def send(page: Browser, text: str, most_tokens: int = 40) -> None:
    """Send a message as a person does."""
    page.run("$('n-max_tokens').value = arguments[0]", most_tokens)
    page.type("#question", text)
    page.press("Enter")


def test_a_chat_is_answered_kept_retried_and_changed(page: Browser) -> None:
    send(page, "Why do cats purr?")
    page.wait(IS_IDLE, 2)
    first = page.text(".assistant .body")
    assert first
    assert "generated" in page.text(".assistant .figures")
    assert page.text("#said") == "the answer is complete"
    page.run("location.reload()")
    page.wait("return document.querySelectorAll('.message').length === 2")
    assert page.text(".assistant .body") == first, "the tab remembers it"
    page.run("$('n-seed').value = 7; $('n-temperature').value = 1.5")
    page.run("window.old = messages[1]")
    page.click(".assistant .acts button:nth-child(2)")
    page.wait("return !running && messages.length === 2 && messages[1] !== window.old")
    page.run("$('n-max_tokens').value = 20")
    page.click(".user .acts button")
    page.type(".user textarea", " And dogs?")
    page.press("Enter")
    page.wait("return !running && messages.length === 2")
    assert page.text(".user .body") == "Why do cats purr? And dogs?"
    page.click("#clear")
    page.wait("return messages.length === 0 && document.activeElement === $('question')")


def test_an_answer_is_stopped(page: Browser, server: Server) -> None:
    endless = "const parts = requestParts;"
    endless += "window.requestParts = () => ({...parts(), ignore_eos: true})"
    page.run(endless)
    send(page, "Tell me a long story.", 900)
    page.wait("return running && messages.at(-1).content.length > 20")
    page.press("Escape")
    page.wait("return !running")
    assert page.run("return messages.at(-1).finish") == "stopped"
    assert page.text("#said") == "stopped"
    page.wait("return latest && latest.requests.length === 0")
    page.wait("return latest.ended.length > 0")


def test_token_probabilities_are_shown_at_the_pointer_and_by_keys(page: Browser) -> None:
    page.click("#probabilities")
    send(page, "The capital of France is")
    page.wait(IS_IDLE, 2)
    assert page.run("return messages[1].tokens.map((each) => each.text).join('')") == page.run(
        "return messages[1].content"
    )
    page.point_at(".token:nth-child(2)")
    page.wait("return document.querySelectorAll('.likely tr').length === 5")
    page.picture(PICTURES / "probabilities.png")
    page.run("document.querySelector('.tokens').focus()")
    page.press("Right", "Right")
    page.wait("return document.querySelector('.token.on')?.dataset.index !== undefined")
    assert "had" in page.text("#said")


def test_reasoning_and_tool_calls_are_shown_and_answered(page: Browser) -> None:
    def chunk(**delta: object) -> dict[str, object]:
        return {"id": "chatcmpl-x", "choices": [{"index": 0, "delta": delta}]}

    call = {"index": 0, "id": "call-1", "function": {"name": "weather", "arguments": '{"city":'}}
    rest = {"index": 0, "function": {"arguments": ' "Ulm"}'}}
    calling = [
        chunk(reasoning_content="It asks for the weather."),
        chunk(tool_calls=[call]),
        chunk(tool_calls=[rest]),
    ]
    page.run(SCRIPTED, [calling, [chunk(content="**Rain** in `Ulm`.\n\n```\nwet\n```")]])
    tools = '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]'
    page.run("$('tools').value = arguments[0]", tools)
    send(page, "What is the weather?")
    page.wait("return !running && messages.length === 2")
    assert page.text(".reasoning div") == "It asks for the weather."
    assert page.text(".call b") == "calls weather"
    page.type(".call textarea", "rain")
    page.click(".call button")
    page.wait("return !running && messages.length === 4")
    assert page.run("return window.sent[0].tools[0].function.name") == "weather"
    sent = page.run("return window.sent[1].messages")
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Ulm"}'
    assert sent[2] == {"role": "tool", "content": "rain", "tool_call_id": "call-1"}
    assert (
        page.run("return document.querySelector('.message:last-child strong').innerText") == "Rain"
    )
    assert page.run("return document.querySelector('.message:last-child pre').innerText") == "wet"


def test_wrong_tools_send_nothing(page: Browser) -> None:
    page.run(SCRIPTED, [])
    page.type("#tools", "[{")
    send(page, "hello")
    page.wait("return !$('tools-error').hidden && document.activeElement === $('tools')")
    assert page.text("#tools-error").startswith("this is not JSON")
    assert page.run("return window.sent.length") == 0


def test_html_of_a_model_is_text(page: Browser) -> None:
    html = "<img src=x onerror=alert(1)> <b>no</b> [x](javascript:alert(1))"
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": html}}]}
    page.run(SCRIPTED, [[chunk]])
    send(page, html)
    page.wait("return !running && messages.length === 2")
    assert page.text(".assistant .body") == html
    assert (
        page.run("return document.querySelectorAll('#messages img, #messages b > b').length") == 0
    )


def test_what_a_model_repeats_does_not_stop_the_page(page: Browser) -> None:
    """A heading for each line must not nest, nor may marks of code be sought for ever."""
    script = "return markdown(arguments[0]).length"
    assert page.run(script, "# a\n" * 20_000) == 20_000
    assert page.run(script, "x" + "`" * 20_000 + "a" * 20_000) == 1
    assert page.run(script, "`a` " * 100_000) == 1
    shown = "return [...markdown(arguments[0])[0].children].map((each) => each.outerHTML)"
    assert page.run(shown, "a `b` ``c`d``") == ["<code>b</code>", "<code>c`d</code>"]


def test_the_engine_is_seen_under_load(page: Browser, server: Server) -> None:
    page.press("Alt+2")
    page.wait("return location.hash === '#engine' && !$('engine').hidden")
    threads = [ask(server.port, f"story-{number}", max_tokens=700) for number in range(6)]
    page.wait("return latest.requests.filter((each) => each.state === 'decode').length === 4")
    page.wait("return document.querySelectorAll('.request').length === 6")
    page.wait("return latest.requests.some((each) => each.known_tokens > each.prompt_tokens + 150)")
    assert "of 4" in page.text("#models")
    assert "The first that waits lacks a slot (max_num_seqs)." in page.text("#models")
    painted = "const c = document.querySelector('.map canvas'); const d = c.getContext('2d')"
    painted += ".getImageData(0, 0, c.width, c.height).data; return new Set(d).size > 6"
    assert page.run(painted), "the map has several colours"
    page.picture(PICTURES / "engine.png")
    page.scheme("dark")
    page.run("document.querySelector('.request button').focus()")
    page.picture(PICTURES / "engine-dark.png")
    page.press("Enter")
    page.wait("return $('timeline-body').innerText.startsWith('It is still running')")
    page.press("Escape")
    page.wait("return $('timeline').hidden")
    assert page.run("return document.activeElement.closest('.request') !== null")
    page.scheme("light")
    for thread in threads:
        thread.join()
    page.wait("return latest.requests.length === 0 && $('ended').children.length >= 6")
    page.run("document.querySelector('#ended button').focus()")
    page.press("Enter")
    page.wait("return document.querySelectorAll('.phases tbody tr').length >= 4")
    assert "% " in page.text(".cause") or "%)" in page.text(".cause")
    page.picture(PICTURES / "timeline.png")


def test_a_killed_engine_is_seen_and_comes_back(page: Browser, server: Server) -> None:
    page.press("Alt+2")
    page.wait("return latest?.models[0].state === 'ready'")
    deaths = page.run("return latest.models[0].engines[0].deaths")
    page.run(
        "window.states = []; new MutationObserver(() => window.states.push($('state').innerText))"
        ".observe($('state'), {childList: true, subtree: true, characterData: true})"
    )
    thread = ask(server.port, "survivor", max_tokens=300)
    page.wait("return latest.requests.some((each) => each.state === 'decode')")
    server.kill_engine()
    page.wait("return latest.models[0].engines[0].deaths === arguments[0]", deaths + 1)
    page.wait(
        "return latest.models[0].state === 'ready' && latest.models[0].engines[0].restarts > 0"
    )
    assert "Engine deaths" in page.text("#models")
    thread.join()
    page.wait("return latest.ended[0].id === 'survivor' && latest.ended[0].outcome === 'finished'")
    assert page.run("return latest.ended[0].generated_tokens") == 300


def test_the_page_is_used_by_keys_alone(page: Browser) -> None:
    first = "document.querySelector('a, button, input, select, textarea')"
    page.run(f"{first}.focus()")
    assert page.run("return document.activeElement.className") == "skip"
    assert page.run(f"return {first}.getBoundingClientRect().left >= 0"), "it is seen then"
    page.press("Tab", "Tab", "Enter")
    page.wait("return !$('engine').hidden && $('to-engine').ariaCurrent === 'page'")
    page.press("Alt+1")
    page.wait("return document.activeElement === $('question')")
    reached = set()
    for _ in range(40):
        page.press("Tab")
        reached.add(page.run("return document.activeElement.id"))
    assert {"send", "clear", "system", "n-temperature", "tools", "probabilities"} <= reached
    assert page.run(NAMELESS) == []


def test_a_phone_has_all_of_it(page: Browser) -> None:
    page.size(390, 844, 2)
    page.run("location.reload()")
    page.wait("return $('model').value !== '' && latest !== null")
    assert not page.run("return $('settings').open")
    page.run("$('n-temperature').value = 0")
    send(page, "Say hello.", 20)
    page.wait(IS_IDLE, 2)
    narrow = "return document.documentElement.scrollWidth <= innerWidth"
    assert page.run(narrow)
    page.picture(PICTURES / "phone.png")
    page.press("Alt+2")
    page.wait("return document.querySelector('.model')")
    assert page.run(narrow)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(page: Browser, scheme: str) -> None:
    page.scheme(scheme)
    texts = ("ink", "faint", "accent", "bad", "decode", "prefill")
    grounds = ("paper", "sheet")
    for text, ground, found in page.run(CONTRAST, [(a, b) for a in texts for b in grounds]):
        least = 3.0 if text in ("decode", "prefill") else 4.5  # these two are of graphics
        assert found >= least, f"{text} on {ground} in {scheme}: {found:.2f}"
    page.run(
        "messages = [{role: 'user', content: 'Why?'}, {role: 'assistant', content: 'So.'}];"
        "showAll()"
    )
    if scheme == "dark":
        page.picture(PICTURES / "chat-dark.png")


def test_a_chat_as_the_documentation_shows_it(page: Browser) -> None:
    page.run("$('system').value = 'You answer briefly.'; $('n-temperature').value = 0")
    send(page, "Name three uses of paper.", 120)
    page.wait(IS_IDLE, 2)
    page.picture(PICTURES / "chat.png")


def test_a_server_with_keys_asks_for_one(window: Browser) -> None:
    with serving("--api-key", KEY) as server:
        window.open(server.url)
        window.run("sessionStorage.clear()")
        window.wait("return $('key-dialog').open")
        window.type("#key", "a wrong key")
        window.press("Enter")
        window.wait("return $('key-dialog').open && !$('key-error').hidden")
        window.type("#key", KEY)
        window.press("Enter")
        window.wait("return !$('key-dialog').open && $('model').value !== ''")
        window.wait("return latest?.models[0].state === 'ready'")
        assert not window.run("return $('forget').hidden")
        window.click("#forget")
        window.wait("return $('key-dialog').open")
