"""`octavo bench offline` and `latency`, with an engine of a tiny model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.bench import offline
from octavo.bench.load.asked import Asked
from octavo.bench.offline import Throughput, latencies, latency_figures, throughput
from octavo.cli import main
from octavo.cli.commands import OK, USAGE
from octavo.core.config import ConfigError
from tests.api.tiny import make_model
from tests.docs.models import make_adapter

ENGINE = ("--num-gpu-blocks-override", "40", "--num-threads", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a complete tiny model."""
    return str(make_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def llm(tiny: str) -> Iterator[LLM]:
    """The model, loaded once."""
    with LLM(tiny, num_gpu_blocks_override=40, num_threads=1) as made:
        yield made


def told_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", *words, *ENGINE, "--json"]) == OK
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_what_an_engine_answers_a_second(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lengths are exact: prompts are token ids, and no answer ends early."""
    sizes = ["--num-prompts", "3", "--input-len", "10", "--output-len", "6", "--n", "2"]
    told = told_of(capsys, "offline", tiny, *sizes, "--output-json", str(tmp_path / "a.json"))
    assert (told["num_requests"], told["num_failed"]) == (3, 0)
    assert (told["total_input_tokens"], told["total_output_tokens"]) == (30, 36)
    assert told["total_num_tokens"] == 66
    for name, count in (("requests", 3), ("tokens", 66), ("output_tokens", 36)):
        assert told[f"{name}_per_second"] == pytest.approx(count / told["elapsed_time"])
    assert json.loads((tmp_path / "a.json").read_text()) == told


def test_vllms_names(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["throughput", tiny, "--num-prompts", "2", "--input-len", "4", "--prefix-len", "3"]
    told = told_of(capsys, *words, "--output-len", "2")
    assert told["total_input_tokens"] == 14


def test_shaped_data_and_files(tiny: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_text('{"prompt": "The dog"}\n{"prompt": "A fox", "output_tokens": 3}\n', "utf-8")
    few = ["--num-prompts", "2", *ENGINE]
    custom = ["--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "4"]
    assert main(["bench", "offline", tiny, *few, *custom]) == OK
    path.write_text('{"messages": [{"role": "user", "content": "x"}]}\n', "utf-8")
    assert main(["bench", "offline", tiny, *few, *custom]) == OK
    shaped = ["--dataset-name", "mooncake", "--length-scale", "0.0005"]
    assert main(["bench", "offline", tiny, *few, *shaped]) == OK


def test_adapters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.docs.models import make_chat_model

    model, adapter = tmp_path / "model", tmp_path / "adapter"
    make_chat_model(model)
    make_adapter(adapter)
    sizes = ["--num-prompts", "2", "--input-len", "4", "--output-len", "2"]
    told = told_of(capsys, "offline", str(model), *sizes, "--lora-path", str(adapter))
    assert told["num_requests"] == 2


def test_what_offline_refuses(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ["--num-prompts", "0"],
        ["--n", "0"],
        ["--input-len", "500"],  # the model takes 128
        ["--dataset-name", "mooncake"],
        ["--dataset-name", "custom", "--dataset-path", "/no/such"],
        ["--lora-path", "/no/such"],
        ["--output-json", "/no/such/file"],
    ):
        assert main(["bench", "offline", tiny, *words, *ENGINE]) == USAGE, words
    path = tmp_path / "both"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "x"}]}\n', "utf-8")
    mixed = ["--dataset-name", "custom", "--dataset-path", str(path), "--output-len", "2"]
    assert main(["bench", "offline", tiny, *mixed, "--num-prompts", "2", *ENGINE]) == USAGE
    capsys.readouterr()


def test_a_batch_in_turns(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--input-len", "8", "--output-len", "4", "--batch-size", "3"]
    told = told_of(capsys, "latency", tiny, *sizes, "--num-iters", "5", "--num-iters-warmup", "1")
    assert (told["input_len"], told["output_len"], told["batch_size"]) == (8, 4, 3)
    assert len(told["latencies"]) == 5
    assert told["avg_latency"] == pytest.approx(sum(told["latencies"]) / 5)
    assert told["output_tokens_per_second"] == pytest.approx(12 / told["avg_latency"])
    assert list(told["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert main(["bench", "latency", tiny, *ENGINE, *sizes, "--num-iters", "1"]) == OK
    assert "P99 latency (s):" in capsys.readouterr().out


def test_a_batch_caches_no_prefixes_unless_asked(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def watched(llm: LLM, *rest: Any) -> list[float]:
        seen.append(llm.model.cache_settings["enable_prefix_caching"])
        return [1.0]

    monkeypatch.setattr(offline, "latencies", watched)
    once = ["bench", "latency", tiny, *ENGINE, "--num-iters", "1"]
    assert main(once) == OK
    assert main([*once, "--enable-prefix-caching"]) == OK
    assert seen == [False, True]


@pytest.mark.parametrize("name", ["input-len", "output-len", "batch-size", "num-iters"])
def test_what_latency_refuses(name: str, tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", tiny, f"--{name}", "0"]) == USAGE
    assert f"--{name}" in capsys.readouterr().err


def test_figures_of_turns_by_hand() -> None:
    found = latency_figures([0.4, 0.1, 0.2, 0.3])
    assert found["avg_latency"] == pytest.approx(0.25)
    assert found["std_latency"] == pytest.approx(0.0125**0.5)
    assert found["percentiles"]["50"] == pytest.approx(0.25)
    assert found["percentiles"]["90"] == pytest.approx(0.3 + 0.7 * 0.1)
    assert found["percentiles"]["10"] == pytest.approx(0.1 + 0.3 * 0.1)


def test_figures_of_a_batch_by_hand() -> None:
    found = Throughput(4.0, 2, 1, 60, 20).as_json()
    assert found["total_num_tokens"] == 80
    rates = {name: each for name, each in found.items() if name.endswith("_per_second")}
    assert rates == {
        "requests_per_second": 0.5,
        "tokens_per_second": 20.0,
        "output_tokens_per_second": 5.0,
    }


def test_an_interrupt_keeps_the_turns_before_it(llm: LLM) -> None:
    def stop_at(last: int) -> list[float]:
        def watch(done: int) -> None:
            if done == last:
                raise_at_next.append(True)

        raise_at_next: list[bool] = []
        generate = llm.generate

        def generating(*arguments: Any, **named: Any) -> Any:
            if raise_at_next:
                raise KeyboardInterrupt
            return generate(*arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llm, "generate", generating)
            asked = [Asked([5, 6], 2)]
            return latencies(llm, asked, SamplingParams(ignore_eos=True), 1, 9, watch)

    assert len(stop_at(3)) == 2
    with pytest.raises(KeyboardInterrupt):
        stop_at(1)


def test_the_warm_up_is_in_no_figure_and_in_no_cache(llm: LLM) -> None:
    found = throughput(llm, [Asked([5, 6, 7], 3)], SamplingParams(ignore_eos=True))
    assert (found.num_requests, found.total_input_tokens, found.total_output_tokens) == (1, 3, 3)
    prompt = random.Random("warm-up").choices(offline.token_choices(llm), k=16)
    cached = []
    for is_first in (True, False):
        if is_first:
            offline.warm_up(llm)
        (output,) = llm.generate([[*prompt, 5]], SamplingParams(max_tokens=1), use_tqdm=False)
        cached.append(output.num_cached_tokens)
    assert cached == [0, 16]  # the second time it is found


def test_too_long_a_request_is_named(llm: LLM) -> None:
    offline.check_lengths(llm, [Asked([1] * 100, 28)])
    with pytest.raises(ConfigError, match="request 2"):
        offline.check_lengths(llm, [Asked("x", 1), Asked([1] * 100, 29)])
