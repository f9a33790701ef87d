"""Responses put together from their events, as clients do it."""

from __future__ import annotations

import json
from typing import Any

PATH = "/v1/responses"
ENDS = ("response.completed", "response.incomplete", "response.failed")


def events_of(text: str, first: int = 0) -> list[dict[str, Any]]:
    """Return the payloads of a stream, whose names and numbers are checked."""
    *frames, end = text.split("\n\n")
    assert end == ""
    payloads = []
    for frame in frames:
        if frame == ": ping":  # the machine was slow
            continue
        name, data = frame.split("\n")
        payloads.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {payloads[-1]['type']}"
    numbers = [each["sequence_number"] for each in payloads]
    assert numbers == list(range(first, first + len(numbers)))
    return payloads


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response at the end of a stream, after checking that the events add up to it."""
    created, begun, *middle, last = events
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert created["response"]["output"] == []
    items: list[dict[str, Any]] = []
    for each in middle:
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(items)
            items.append(each["item"])
            continue
        item = items[-1]
        assert each["output_index"] == len(items) - 1
        match kind:
            case "content_part.added":
                assert each["item_id"] == item["id"]
                item["content"].append(each["part"])
            case "output_text.delta" | "reasoning_text.delta":
                item["content"][each["content_index"]]["text"] += each["delta"]
                if "logprobs" in each:
                    item["content"][each["content_index"]]["logprobs"] += each["logprobs"]
            case "function_call_arguments.delta":
                item["arguments"] += each["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert each["text"] == item["content"][each["content_index"]]["text"]
            case "content_part.done":
                assert each["part"] == item["content"][each["content_index"]]
            case "function_call_arguments.done":
                assert (each["arguments"], each["name"]) == (item["arguments"], item["name"])
            case "output_item.done":
                assert each["item"] | {"status": ""} == item | {"status": ""}
                items[-1] = each["item"]
            case _:
                raise AssertionError(kind)
    assert last["type"] in ENDS
    assert last["response"]["output"] == items
    response: dict[str, Any] = last["response"]
    return response


def said(response: dict[str, Any]) -> Any:
    """Return what two answers to the same request have in common: not the ids."""
    output = json.loads(json.dumps(response["output"]))
    for item in output:
        del item["id"]
        item.pop("call_id", None)
    return output, response["status"], response["incomplete_details"]


def text_of(response: dict[str, Any]) -> str:
    """Return the text of all messages."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
