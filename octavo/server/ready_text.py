"""The text of a started server: its address, and commands to try what the model serves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Sequence

from octavo.options.server import ServerSettings

_CHAT = '{"messages": [{"role": "user", "content": "Hello"}]}'
# By what a model serves, the first that fits: a route, and a body for it.
_TRIALS = {
    "generate": ("/v1/chat/completions", _CHAT),
    "embed": ("/v1/embeddings", '{"input": ["Hello"]}'),
    "score": ("/score", '{"text_1": "Hello", "text_2": ["Good day", "Rain"]}'),
    "classify": ("/classify", '{"input": ["Hello"]}'),
}


def ready_text(
    config: ServerSettings,
    port: int,
    model: str,
    tasks: Collection[str] = ("generate",),
    others: Sequence[str] = (),
) -> str:
    """Return the text of a started server: its address and commands to try one of its tasks.

    `others` are the names of further models; requests then name theirs.
    """
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    scheme = "http" if config.ssl_certfile is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    where, curl, client, imports = url, "curl", "", ""
    if config.uds is not None:
        where, url = f"the unix socket {config.uds}", f"{scheme}://localhost"
        curl = f"curl --unix-socket {shlex.quote(str(config.uds))}"
        transport = f"httpx.HTTPTransport(uds={str(config.uds)!r})"
        client = f", http_client=httpx.Client(transport={transport})"
        imports = "import httpx\n  "
    key = ' -H "Authorization: Bearer $OCTAVO_API_KEY"' if config.api_keys else ""
    api_key = "'none'"
    if config.api_keys:
        api_key, imports = "os.environ['OCTAVO_API_KEY']", "import os\n  " + imports
    text = f"Octavo serves {', '.join((model, *others))} at {where}\n"
    if config.console and config.uds is None:
        text += "A browser that opens this address gets the console.\n"
    task = next((each for each in _TRIALS if each in tasks), None)
    if task is None:
        return text
    route, body = _TRIALS[task]
    if others:
        body = body.replace("{", "{" + f'"model": {json.dumps(model)}, ', 1)
    text += (
        f"\n  {curl} {url}{route}{key} -H 'Content-Type: application/json' -d {shlex.quote(body)}\n"
    )
    use = _use(task, model)
    if not use:  # OpenAI's client has no such route
        return text
    lines = (
        f"{imports}from openai import OpenAI",
        f"client = OpenAI(base_url='{url}/v1', api_key={api_key}{client})",
        *use,
    )
    return text + "\n" + "".join(f"  {line}\n" for line in lines)


def _use(task: str, model: str) -> tuple[str, ...]:
    """Return the lines of Python that use OpenAI's client for a task."""
    if task == "generate":
        return (
            "messages = [{'role': 'user', 'content': 'Hello'}]",
            f"print(client.chat.completions.create(model='{model}', messages=messages))",
        )
    if task == "embed":
        return (f"print(client.embeddings.create(model='{model}', input=['Hello']))",)
    return ()
