"""The settings of published KV events: vLLM's keys, their bounds, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.kv_events import KVEventsConfig, address_of, is_bound, is_open

ON = {"enable_kv_cache_events": True}


def read(given: Any, **options: Any) -> KVEventsConfig | None:
    return read_arguments("m", {"kv_events_config": given, **options}).kv_events_config


@pytest.mark.parametrize(
    "given", [None, {}, {"publisher": "zmq"}, {**ON, "publisher": "null"}, '{"topic": "kv"}']
)
def test_nothing_is_published_unless_it_is_asked_for(given: Any) -> None:
    assert read(given) is None


def test_all_keys_of_vllm_are_known() -> None:
    keys = {
        "endpoint": "tcp://*:6000",
        "replay_endpoint": "tcp://*:7000",
        "buffer_steps": 5,
        "hwm": 6,
        "max_queue_size": 7,
        "topic": "kv",
    }
    for given in ({**ON, "publisher": "zmq", **keys}, json.dumps({**ON, **keys})):
        assert read(given) == KVEventsConfig(**keys)  # type: ignore[arg-type]
    assert read(KVEventsConfig(topic="kv")) == KVEventsConfig(topic="kv")


def test_only_this_machine_can_read_unless_another_address_is_given() -> None:
    config = read(ON)
    assert config is not None
    assert not is_open(config.endpoint)
    assert config.replay_endpoint is None
    assert all(map(is_open, ("tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://:::1")))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([1], "mapping"),
        ("{", "JSON"),
        ({"enable_kv_cache_events": 1}, "true or false"),
        ({**ON, "publisher": "kafka"}, "publisher"),
        ({**ON, "endpiont": "tcp://*:1"}, "endpoint"),
        ({**ON, "endpoint": "inproc://cache"}, "endpoint"),
        ({**ON, "endpoint": "tcp://*:0"}, "port"),
        ({**ON, "endpoint": "tcp://*:70000"}, "port"),
        ({**ON, "replay_endpoint": 5558}, "replay_endpoint"),
        ({**ON, "hwm": 0}, "hwm"),
        ({**ON, "buffer_steps": True}, "buffer_steps"),
        ({**ON, "max_queue_size": 1 << 30}, "max_queue_size"),
        ({**ON, "topic": 5}, "topic"),
        ({**ON, "topic": "x" * 300}, "topic"),
        ({**ON, "topic": "é" * 128}, "topic"),
        ('{"enable_kv_cache_events": true, "topic": "\\ud800"}', "topic"),
        ({**ON, "endpoint": "tcp://..:5557"}, "endpoint"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(given: Any, word: str) -> None:
    with pytest.raises(ConfigError, match="kv_events_config") as caught:
        read(given)
    assert word in str(caught.value)


def test_each_engine_has_an_address_of_its_own() -> None:
    assert address_of("tcp://*:5557", 2) == "tcp://*:5559"
    assert [address_of("ipc:///a/b", rank) for rank in (0, 1)] == ["ipc:///a/b", "ipc:///a/b_dp1"]
    near = {**ON, "replay_endpoint": "tcp://127.0.0.1:5558"}
    assert read(near) is not None
    for wrong in (near, {**ON, "endpoint": "tcp://*:65535"}):
        with pytest.raises(ConfigError, match="kv_events_config"):
            read(wrong, data_parallel_size=2)


def test_names_are_connected_to_and_addresses_of_this_machine_bound() -> None:
    assert is_bound("tcp://127.0.0.1:1")
    assert is_bound("ipc:///a/b")
    assert not is_bound("tcp://router:5557")
    assert not is_bound("tcp://10.0.0.1:5557")


def test_without_a_prefix_cache_there_is_nothing_to_publish() -> None:
    with pytest.raises(ConfigError, match="kv_events_config"):
        read(ON, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="kv_events_config"):
        EngineArguments("m", kv_events_config=5)  # type: ignore[arg-type]
