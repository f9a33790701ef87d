"""huggingface_hub: answers under a schema, which its client sends in TGI's form."""

from __future__ import annotations

import json
import sys
from typing import Any

from huggingface_hub import InferenceClient, constants

URL, KEY = sys.argv[1:3]
constants.HF_HUB_OFFLINE = False  # by which its client refuses any server, also this one
MESSAGES = [{"role": "user", "content": "How warm is it?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "degrees": {"enum": [3, 20]}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
FORMATS: list[dict[str, Any]] = [
    {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}},
    {"type": "json", "value": SCHEMA},
]


def main() -> None:
    """Ask for a schema in each form, whole and streamed."""
    client = InferenceClient(base_url=URL, api_key=KEY)
    for described in FORMATS:
        asked: Any = {"model": "tiny", "max_tokens": 2000, "response_format": described}
        whole = client.chat_completion(MESSAGES, **asked)
        streamed = client.chat_completion(MESSAGES, **asked, stream=True)
        parts = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
        for text in (whole.choices[0].message.content, "".join(parts)):
            assert json.loads(text)["city"] in ("Oslo", "Rome"), text
    print("all is well")


main()
