"""Errors of `LLM` and the state after them: options, prompts, Ctrl-C, failed requests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from octavo import LLM, BeamSearchParams, RequestError, SamplingParams
from octavo.api.continuation import Continuation
from octavo.api.offline_runner import HeldInterrupts
from octavo.api.outputs import CompletionOutput, EngineDeadError, RequestOutput
from octavo.api.requests import RequestTable, check_request
from octavo.backends.native.tiers import orders
from octavo.backends.step import NOT_FINITE
from octavo.core.config import ConfigError, CoreConfig
from octavo.core.request import TokenEvent
from octavo.core.stats import RequestStats
from octavo.text.chat.messages import ChatTemplateError
from tests.api.tiny import make_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(directory, block_size=4, num_gpu_blocks_override=200, max_num_batched_tokens=32)


def only(outputs: list[RequestOutput]) -> Any:
    (output,) = outputs
    return output.outputs[0]


# options of the engine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"block_size": 1.5}, "block_size=1.5 must be a whole number"),
        ({"block_size": True}, "block_size=True must be a whole number"),
        ({"dtype": "int3"}, "dtype='int3' must be one of auto, float32, bfloat16, float16, half"),
        ({"cpu_weights": "int4-16"}, "cpu_weights='int4-16' must be one of auto, bf16, int8,"),
        ({"kv_cache_dtype": "int2"}, "kv_cache_dtype='int2' must be one of auto, int8, fp8,"),
        ({"cpu_isa": 512}, "cpu_isa=512 must be a name"),
        ({"cpu_isa": "sse9"}, "cpu_isa='sse9' is none of the instruction sets"),
        ({"accumulation_order": "sideways"}, "no instruction set of this processor adds products"),
        ({"cpu_isa": "scalar", "accumulation_order": "bf16"}, "every processor has fma"),
        ({"backend": "torch", "preallocate_kv_cache": True}, "preallocate_kv_cache=True is a sett"),
        ({"backend": "torch", "cpu_isa": "avx2"}, "cpu_isa='avx2' is a setting of the native"),
        (
            {"device": "tpu"},
            "^device='tpu' is not possible: the backends compute on cpu, cuda, fake",
        ),
        ({"device": "cuda:-1"}, "^device='cuda:-1' is not possible"),
        ({"device": "cpu:1"}, "^device='cpu:1' is not possible"),
        ({"device": 0}, "^device=0 must be a name"),
        ({"backend": "card"}, "backend='card' must be one of auto, native, torch, cuda"),
        ({"backend": "native", "device": "cuda"}, "beside backend='native', which computes on cpu"),
        (
            {"device": "fake", "cpu_weights": "int8"},
            "cpu_weights='int8' is a setting of the native",
        ),
        ({"max_model_len": 0}, "max_model_len=0 must be at least 2"),
        ({"max_model_len": 129}, "max_model_len=129 is more than the 128 positions"),
        ({"max_num_seqs": 0}, "max_num_seqs=0 must be at least 1"),
        ({"seed": "a"}, "seed='a' must be a whole number"),
        ({"enable_prefix_caching": "no"}, "must be True or False"),
        ({"preallocate_kv_cache": 1}, "preallocate_kv_cache=1 must be True or False"),
        ({"preallocate_kv_cache": True, "spare_engine": True}, "leave one of them out"),
        ({"priority_ageing_seconds": -1}, "must be at least 0, and finite"),
        ({"priority_ageing_seconds": "1"}, "must be a number of seconds"),
        ({"itl_goal": -0.1}, "itl_goal=-0.1 must be at least 0, and finite"),
        ({"itl_goal": "fast"}, "itl_goal='fast' must be a number of seconds"),
        ({"ttft_goal": float("inf")}, "ttft_goal=inf must be at least 0, and finite"),
        ({"ttft_goal": 1.0}, "set itl_goal, or leave ttft_goal out"),
        ({"max_num_seq": 3}, "there is no option 'max_num_seq'; did you mean max_num_seqs"),
        ({"nonsense": 1}, "there is no option 'nonsense'; there are: tokenizer, "),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 must be between 1 and 64"),
        (
            {"tensor_parallel_size": 2, "backend": "torch"},
            "tensor_parallel_size=2 is a setting of the native backend",
        ),
        ({"quantization": "awq"}, "quantization='awq': the model's files are not quantised"),
        ({"logits_processors": "a"}, "logits_processors is a str; it must map names"),
        ({"logits_processors": {"a": 1}}, "logits_processors has 'a': 1"),
        ({"model": None}, "model=None must be a name or a path"),
        ({"tokenizer": 3}, "tokenizer=3 must be a name or a path"),
    ],
)
def test_a_wrong_option_is_named(directory: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(**{"model": directory, **options})


def test_an_instruction_set_with_another_order_of_sums_is_refused(directory: Path) -> None:
    """A processor without bf16 products has one order, so that there is nothing to contradict."""
    others = sorted({*orders().values()} - {orders()["scalar"]})
    expected = "leave one of them out" if others else "no instruction set of this processor"
    with pytest.raises(ConfigError, match=expected):
        LLM(directory, cpu_isa="scalar", accumulation_order=others[0] if others else "pairs")


def test_options_without_effect_are_logged_once_with_the_reason(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        llm = LLM(
            directory,
            dtype="torch.float32",
            num_gpu_blocks_override=np.int64(50),
            max_num_seqs=None,
            trust_remote_code=True,
            swap_space=4,
            gpu_memory_utilization=0.9,
            tensor_parallel_size=1,
        )
    assert llm._model.engine.config.dtype == "float32"
    assert llm._model.engine.config.core.max_num_seqs == 64
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "taken for compatibility, without effect: trust_remote_code (no code of a model is ever "
        "run), swap_space (what is preempted is computed again)"
    )


# arguments of a call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampling_params": {"temperature": 0}}, "must be SamplingParams, not dict"),
        ({"sampling_params": [None]}, "must be SamplingParams, not NoneType"),
        ({"sampling_params": []}, "0 sampling_params for 1 prompts"),
        ({"priority": ["a"]}, "priority='a' must be a whole number"),
        ({"priority": [1_000_001]}, "priority=1000001 must be within"),
        ({"cache_salt": 3}, "cache_scope=3 must be a string"),
    ],
)
def test_a_wrong_argument_is_named(llm: LLM, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(["x"], **arguments)
    assert len(only(llm.generate("x", GREEDY)).token_ids) == 12


def test_the_bad_one_of_a_batch_is_named_before_anything_runs(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step() -> None:
        pytest.fail("a step was made")

    monkeypatch.setattr(llm._model.core, "step", step)
    empty = np.array([], np.int64)
    bads: tuple[Any, ...] = ("", [], empty, [1, 300], [1, -1], None, [2] * 200, {"prompt": None})
    for bad in bads:
        batch: list[Any] = ["x", bad, "y"]
        with pytest.raises(RequestError, match=r"^prompts\[1\]: "):
            llm.generate(batch, GREEDY)
    with pytest.raises(
        RequestError, match=r"^prompts\[1\]: bad_words_token_ids has ids that are no tokens: 300"
    ):
        llm.generate(["x", "y"], [GREEDY, SamplingParams(bad_words_token_ids=((300,),))])
    unknown = SamplingParams(logits_processors=("mine",))
    with pytest.raises(RequestError, match=r"^prompts\[1\]: logits processor 'mine' is unknown to"):
        llm.generate(["x", "y"], [GREEDY, unknown])
    assert len(llm._runner._table) == 0


def test_every_error_of_a_user_is_of_one_class(llm: LLM) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError):
        SamplingParams(temperature=-1)
    with pytest.raises(RequestError):
        BeamSearchParams(beam_width=0, max_tokens=1)
    with pytest.raises(RequestError, match="length_penalty=nan"):
        BeamSearchParams(beam_width=1, max_tokens=1, length_penalty=float("nan"))
    with pytest.raises(RequestError, match="params must be BeamSearchParams, not SamplingParams"):
        llm.beam_search("x", GREEDY)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as raised:
        llm.chat(messages, GREEDY, chat_template="{{ raise_exception('no') }}")
    assert isinstance(raised.value, ChatTemplateError)
    assert issubclass(RequestError, ValueError)


def test_bad_words_are_counted_with_their_spellings(llm: LLM) -> None:
    words: Any = [f"{number} x" for number in range(40)]
    given: Any = [[number] for number in range(60)]
    with pytest.raises(RequestError, match=r"40 bad_words have 80 .* has 60; at most 128"):
        llm.generate("x", SamplingParams(bad_words=words, bad_words_token_ids=given))


def test_arrays_are_token_ids(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("The quick")
    expected = only(llm.generate("The quick", GREEDY)).token_ids
    array = np.array(ids)
    given: tuple[Any, ...] = (
        array,
        list(array),
        {"prompt_token_ids": array.astype(np.uint16)},
        {"prompt": "The quick", "prompt_token_ids": None},
    )
    for prompt in given:
        assert only(llm.generate(prompt, GREEDY)).token_ids == expected
    for several in (np.stack([array, array]), [array, array]):
        outputs = llm.generate(several, GREEDY)  # type: ignore[arg-type]
        assert [output.outputs[0].token_ids for output in outputs] == [expected, expected]
    for texts in (np.array(["The quick", "The"]), np.array(["The quick", "The"], object)):
        outputs = llm.generate(texts, GREEDY)  # type: ignore[arg-type]
        assert [output.prompt for output in outputs] == ["The quick", "The"]
        assert outputs[0].outputs[0].token_ids == expected
    with pytest.raises(RequestError, match=r"prompt_token_ids\[0\] is 0.5"):
        llm.generate([np.array([0.5])], GREEDY)  # type: ignore[arg-type]


def test_no_limit_means_as_many_tokens_as_there_is_room_for(llm: LLM, directory: Path) -> None:
    unlimited: Any = None
    endless = SamplingParams(temperature=0.0, max_tokens=unlimited, ignore_eos=True)
    assert len(only(llm.generate([[2] * 100], endless)).token_ids) == 28
    small = LLM(directory, block_size=4, num_gpu_blocks_override=9)  # 32 positions, and one token
    output = only(small.generate([[2] * 20], endless))
    assert (len(output.token_ids), output.finish_reason) == (13, "length")
    fitting = SamplingParams(temperature=0.0, max_tokens=13, ignore_eos=True)
    assert only(small.generate([[2] * 20], fitting)).token_ids == output.token_ids
    with pytest.raises(RequestError, match="max_tokens=14 make 34; the KV cache holds 33"):
        small.generate([[2] * 20], SamplingParams(max_tokens=14))
    with pytest.raises(RequestError, match="33 tokens; the KV cache, which holds 33 tokens,"):
        small.generate([[2] * 33], endless)


def test_hot_draws_are_drawn_from_everything(llm: LLM) -> None:
    hot = SamplingParams(temperature=1e6, max_tokens=100, seed=1, ignore_eos=True)
    assert len(set(only(llm.generate("x", hot)).token_ids)) > 60


# failures of one request


def _fail_at_two(prompt: Any, output: Any, logits: Any) -> Any:
    if len(output) == 2:
        raise LookupError("nothing here")
    return logits


def _not_finite(prompt: Any, output: Any, logits: Any) -> Any:
    return np.full_like(logits, np.nan)


def test_a_failed_request_fails_alone(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    expected = only(llm.generate("x", GREEDY)).token_ids
    each = [
        GREEDY,
        SamplingParams(temperature=0.0, logits_processors=(_fail_at_two,), ignore_eos=True),
        GREEDY,
        SamplingParams(n=2, logits_processors=(_not_finite,)),
    ]
    outputs = llm.generate(["x"] * 4, each)
    for good in (outputs[0], outputs[2]):
        assert good.outputs[0].token_ids == expected
        assert good.outputs[0].error is None
    failed = outputs[1].outputs[0]
    assert (failed.finish_reason, failed.token_ids) == ("error", expected[:2])
    assert failed.error == "logits processor _fail_at_two failed: LookupError: nothing here"
    assert outputs[1].finished
    assert [bool(each.error and "NaN" in each.error) for each in outputs[3].outputs] == [True, True]
    assert "prompts[1]: logits processor _fail_at_two failed" in caplog.text
    assert not llm._model.core.has_work


def test_one_of_n_that_fails_leaves_the_others_whole(llm: LLM) -> None:
    def fails_once(prompt: Any, output: Any, logits: Any) -> Any:
        if len(output) == 3 and output[0] == first:
            raise LookupError("that one")
        return logits

    several = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
    whole = llm.generate("A day in", several)[0].outputs
    first = whole[1].token_ids[0]
    failing = SamplingParams(
        n=3, seed=5, max_tokens=6, ignore_eos=True, logits_processors=(fails_once,)
    )
    (output,) = llm.generate("A day in", failing)
    assert [sample.finish_reason for sample in output.outputs] == ["length", "error", "length"]
    assert output.outputs[0].token_ids == whole[0].token_ids
    assert output.outputs[1].token_ids == whole[1].token_ids[:3]
    assert output.outputs[2].token_ids == whole[2].token_ids


def test_a_text_that_cannot_be_made_is_its_request_s_own_failure(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = Continuation.push

    def broken(stream: Continuation, event: Any) -> bool:
        if stream.whole.token_ids and stream._sampling.seed == 77:
            raise UnicodeError("no such character")
        return push(stream, event)

    monkeypatch.setattr(Continuation, "push", broken)
    bad = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, seed=77)
    one, other = llm.generate(["x", "x"], [bad, GREEDY])
    assert one.outputs[0].finish_reason == "error"
    assert "UnicodeError: no such character" in str(one.outputs[0].error)
    assert len(other.outputs[0].token_ids) == 12


def test_beams_and_vectors_fail_as_a_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    executor: Any = llm._model.core._executor
    backend = executor.runner._backend
    step = backend.step

    def damaged(batch: Any, draws: Any) -> Any:
        pending = step(batch, draws)
        slots = {*draws.slots.tolist(), *(pool.slot for pool in draws.pools)}
        failures = tuple((slot, NOT_FINITE) for slot in sorted(slots))
        return Mock(
            done=pending.done, collect=lambda: pending.collect()._replace(failures=failures)
        )

    monkeypatch.setattr(backend, "step", damaged)
    with pytest.raises(RequestError, match=r"^prompts\[0\]: the model gave logits that are not"):
        llm.embed(["x", "y"])
    with pytest.raises(RequestError, match=r"^the model gave logits that are not finite"):
        llm.beam_search("x", BeamSearchParams(beam_width=2, max_tokens=2))
    assert only(llm.generate("x", GREEDY)).finish_reason == "error"


# Ctrl-C, and the end of an engine


class _CtrlC:
    """A logits processor that sends a Ctrl-C, in the middle of a step."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, prompt: Any, output: Any, logits: Any) -> Any:
        for _ in range(self.times):
            os.kill(os.getpid(), signal.SIGINT)
        self.times = 0
        return logits


def test_ctrl_c_in_the_middle_of_a_step_leaves_an_llm_that_works(llm: LLM) -> None:
    before = signal.getsignal(signal.SIGINT)
    sampling = SamplingParams(max_tokens=50, logits_processors=(_CtrlC(1),), ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["x", "y"], sampling)
    assert signal.getsignal(signal.SIGINT) is before
    assert not llm._model.core.has_work
    assert len(llm._runner._table) == 0
    assert len(only(llm.generate("x", GREEDY)).token_ids) == 12


def test_a_second_ctrl_c_does_not_wait_and_is_the_engine_s_end(directory: Path) -> None:
    llm = LLM(directory, num_gpu_blocks_override=50)
    sampling = SamplingParams(max_tokens=50, logits_processors=(_CtrlC(2),), ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        llm.generate("x", sampling)
    with pytest.raises(EngineDeadError, match="make a new LLM"):
        llm.generate("x", GREEDY)


def test_an_error_does_not_swallow_a_ctrl_c() -> None:
    def interrupted() -> None:
        with HeldInterrupts():
            os.kill(os.getpid(), signal.SIGINT)
            raise RequestError("something else")

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_an_error_in_a_step_is_raised_unchanged(directory: Path) -> None:
    llm = LLM(directory, num_gpu_blocks_override=50)

    def leave(prompt: Any, output: Any, logits: Any) -> Any:
        raise SystemExit("the processor's own")

    with pytest.raises(SystemExit, match="own"):
        llm.generate("x", SamplingParams(logits_processors=(leave,)))
    with pytest.raises(EngineDeadError, match="make a new LLM") as raised:
        llm.generate("x", GREEDY)
    assert isinstance(raised.value.__cause__, SystemExit)


def test_a_call_within_a_call_is_refused(llm: LLM) -> None:
    def again(prompt: Any, output: Any, logits: Any) -> Any:
        llm.generate("y", GREEDY)

    failed = only(llm.generate("x", SamplingParams(logits_processors=(again,))))
    assert "RuntimeError: this LLM is in use by another call" in failed.error
    assert len(only(llm.generate("x", GREEDY)).token_ids) == 12


def test_a_closed_llm_frees_the_model_and_refuses_calls(directory: Path) -> None:
    with LLM(directory, num_gpu_blocks_override=50) as llm:
        engine = weakref.ref(llm._model.core)
        assert llm.generate("x", GREEDY)
    gc.collect()
    assert engine() is None
    llm.close()
    for call in (lambda: llm.generate("x", GREEDY), llm.reset_prefix_cache):
        with pytest.raises(EngineDeadError, match="this LLM is closed"):
            call()
    assert llm.get_tokenizer().encode("x")


def test_the_prefix_cache_can_be_forgotten(llm: LLM) -> None:
    prompt = [[3] * 40]
    llm.generate(prompt, GREEDY)
    (warm,) = llm.generate(prompt, GREEDY)
    assert llm.reset_prefix_cache()
    (cold,) = llm.generate(prompt, GREEDY)
    assert (warm.num_cached_tokens, cold.num_cached_tokens) == (36, 0)
    assert warm.outputs == cold.outputs


def test_a_stop_string_leaves_the_account_of_the_request(llm: LLM) -> None:
    prompt = [[4] * 40]
    text = only(llm.generate(prompt, GREEDY)).text
    stopped = SamplingParams(temperature=0.0, max_tokens=12, stop=(text[2:4],), ignore_eos=True)
    (output,) = llm.generate(prompt, stopped)
    assert output.outputs[0].finish_reason == "stop"
    assert output.num_cached_tokens == 36
    assert output.metrics is not None
    assert not llm._runner._table._unaccounted


def answers(outputs: list[CompletionOutput]) -> list[Any]:
    return [(each.token_ids, each.text, each.finish_reason) for each in outputs]


@pytest.mark.parametrize(
    ("bound", "predicted"),
    [
        ({"max_waiting_tokens": 30}, ()),
        ({"max_num_waiting": 1}, ()),
        ({"max_waiting_tokens": 1}, ()),
        ({"max_waiting_tokens": 50}, tuple(range(4, 24))),
    ],
)
def test_a_batch_larger_than_the_queue_is_fed_as_the_queue_empties(
    directory: Path,
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    bound: dict[str, int],
    predicted: tuple[int, ...],
) -> None:
    prompts = [[token] * (token % 7 + 6) for token in range(4, 24)]
    expected = [output.outputs for output in llm.generate(prompts, GREEDY)]

    def small(**settings: Any) -> CoreConfig:
        return CoreConfig(**{**settings, "max_num_seqs": 2, **bound})

    monkeypatch.setattr("octavo.resolve.CoreConfig", small)
    crowded = LLM(directory, block_size=4, num_gpu_blocks_override=200)
    sampling = replace(GREEDY, prediction=predicted)
    found = [output.outputs for output in crowded.generate(prompts, sampling)]
    assert [answers(each) for each in found] == [answers(each) for each in expected]
    assert predicted or found == expected


def test_the_statistics_may_follow_tokens_that_were_in_flight(llm: LLM) -> None:
    """An engine in another thread goes on until it receives the abort for a stop string."""
    model = llm._model
    token = model.tokenizer.encode("The quick")[-1]
    stopped = SamplingParams(stop=(model.tokenizer.decode([token]),))
    table = RequestTable(model)
    (request,) = table.open("one", check_request(model, "x", stopped), 0.0)
    name = request.request_id
    output, (abort,) = table.receive(TokenEvent(name, 0, (token,)))
    assert output is not None
    assert output.finished
    assert abort.request_id == name
    assert table.receive(TokenEvent(name, 1, (token,))) == (None, [])
    stats = RequestStats(arrival=0.0, num_prompt_tokens=1, added_at=0.0, num_cached_tokens=7)
    assert table.receive(TokenEvent(name, 2, (), "abort", stats=stats)) == (None, [])
    assert (output.metrics, output.num_cached_tokens) == (stats, 7)
    assert not table._unaccounted
