"""The application of Ray Serve on a cluster of two nodes, which lose replicas: `make test-ray`."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from tests.api.tiny import make_model
from tests.serve_ray.cluster import Cluster, cluster, wait_for

LENGTH = 2048
PROMPTS = ["The quick brown fox", "A day in the country", "Ein Tag wie jeder", "and the dog"]
STREAMS = 12
BODY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_model(tmp_path_factory.mktemp("model"))
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = LENGTH
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def texts(model: Path) -> dict[str, str]:
    """Return what each prompt must be answered with, by an engine in this process."""
    sampling = SamplingParams(temperature=0.0, max_tokens=LENGTH // 2, ignore_eos=True)
    with LLM(model, num_threads=1) as llm:
        found = llm.generate(PROMPTS, sampling)
    return {prompt: each.outputs[0].text for prompt, each in zip(PROMPTS, found, strict=True)}


@pytest.fixture(scope="module")
def two(model: Path) -> Iterator[Cluster]:
    with cluster(model) as made:
        made.run(min_replicas=2)
        yield made


class Stream(threading.Thread):
    """A client that reads a stream, and knows how it ended."""

    def __init__(self, place: Cluster, prompt: str) -> None:
        super().__init__(daemon=True)
        self.prompt, self.text, self.ending = prompt, "", ""
        self.has_begun = threading.Event()
        self._place = place
        self.start()

    def run(self) -> None:
        body = {**BODY, "prompt": self.prompt, "max_tokens": LENGTH // 2}
        try:
            for event in self._place.events(body):
                if "choices" in event:
                    self.text += event["choices"][0]["text"]
                    self.has_begun.set()
                else:
                    self.ending = "done" if "done" in event else event["error"]["code"]
            self.ending = self.ending or "no end"  # Ray's proxy has lost the front
        except urllib.error.HTTPError as error:
            self.ending = str(error.code)
        except (http.client.HTTPException, OSError):
            self.ending = "cut"
        finally:
            self.has_begun.set()


def begun(place: Cluster) -> list[Stream]:
    streams = [Stream(place, PROMPTS[index % len(PROMPTS)]) for index in range(STREAMS)]
    for each in streams:
        each.has_begun.wait()
    return streams


def check(streams: list[Stream], texts: dict[str, str]) -> int:
    """Check that what came is right, and that what is not whole says so; count the whole ones."""
    for each in streams:
        each.join()
        assert texts[each.prompt].startswith(each.text)
        assert each.ending, "a stream that breaks off must not look whole"
        if each.ending == "done":
            assert each.text == texts[each.prompt]
    return sum(each.ending == "done" for each in streams)


def test_answers_are_those_of_one_engine(two: Cluster, texts: dict[str, str]) -> None:
    assert check(begun(two), texts) == STREAMS
    whole = two.ask("/v1/completions", {**BODY, "prompt": PROMPTS[0], "max_tokens": LENGTH // 2})
    assert json.loads(whole.text)["choices"][0]["text"] == texts[PROMPTS[0]]
    assert two.ask("/health").status == 200
    assert json.loads(two.ask("/v1/models").text)["data"][0]["max_model_len"] == LENGTH
    assert "octavo:route_open_requests" in two.ask("/metrics").text


def test_errors_are_ours(two: Cluster) -> None:
    found = two.ask("/v1/completions", {"prompt": "x", "max_tokens": "y"})
    assert (found.status, json.loads(found.text)["error"]["param"]) == (400, "max_tokens")
    assert two.ask("/v1/completions", {"prompt": "x", "model": "another"}).status == 404
    assert two.ask("/v1/nothing", {}).status == 404
    assert two.ask("/v1/files").status == 404


def test_turns_return_to_the_replica_that_has_their_prefix(two: Cluster) -> None:
    """A choice by chance would find a prefix half of the time. There is one front, which knows."""
    for number in range(6):
        messages = [{"role": "user", "content": f"Conversation {number}: " + "fox and dog " * 20}]
        for turn in range(3):
            found = two.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 8})
            answer: Any = json.loads(found.text)
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0 or not turn
            text = answer["choices"][0]["message"]["content"] or ""
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "and then the dog"},
            ]


def test_streams_survive_a_rolling_update(two: Cluster, texts: dict[str, str]) -> None:
    """Replicas are replaced one by one, and the front too; each ends when its requests have."""
    before = set(two.replicas("engine"))
    streams = begun(two)
    two.run(min_replicas=2, max_replicas=3, fronts=2, drain_seconds=299)  # with autoscaling
    assert check(streams, texts) == STREAMS
    wait_for(lambda: not before & set(two.replicas("engine")), "all replicas are new ones")
    assert check(begun(two), texts) == STREAMS


def test_a_replica_that_is_killed(two: Cluster, texts: dict[str, str]) -> None:
    """Streams that it had end with an error; the other goes on, and a new one takes its place."""
    streams = begun(two)
    os.kill(min(two.replicas("engine")), signal.SIGKILL)
    body = {**BODY, "prompt": PROMPTS[0], "max_tokens": 8}
    asked = [two.ask("/v1/completions", body) for _ in range(20)]
    assert [each.status for each in asked] == [200] * 20
    check(streams, texts)
    wait_for(lambda: two.num_replicas() == 2, "there are two replicas again")
    assert check(begun(two), texts) == STREAMS


def test_a_node_that_is_lost(two: Cluster, texts: dict[str, str]) -> None:
    streams = begun(two)
    two.lose_second()
    body = {**BODY, "prompt": PROMPTS[0], "max_tokens": 8}
    seconds = wait_for(lambda: _is_served(two, body), "requests are served again")
    print(f"served again after {seconds:.1f} s")
    check(streams, texts)
    wait_for(lambda: len(two.replicas("front")) >= 1, "there is a front")
    assert check(begun(two), texts) == STREAMS


def _is_served(place: Cluster, body: dict[str, Any]) -> bool:
    try:
        return place.ask("/v1/completions", body).status == 200
    except (http.client.HTTPException, OSError):
        return False


def test_keys_are_checked_before_a_replica_is_asked(two: Cluster, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("key-of-a-client\n")
    two.run(min_replicas=1, api_key_file=str(keys))
    body = {**BODY, "prompt": "x", "max_tokens": 4}
    assert two.ask("/v1/completions", body).status == 401
    assert two.ask("/v1/completions", body, "key-of-another").status == 401
    assert two.ask("/v1/completions", body, "key-of-a-client").status == 200
