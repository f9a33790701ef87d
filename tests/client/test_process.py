"""Everything that a request can ask for, from a real engine process."""

from __future__ import annotations

import logging
import time
from array import array
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from octavo.client.process import ProcessClient
from octavo.core.plan import HiddenPayload, LogprobsPayload
from octavo.core.request import Abort, EncoderInput
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.core.stats import ADAPTER
from octavo.observe.log import set_up_log
from octavo.wire import message_types as messages
from octavo.wire.commands import Pause, ResetPrefixCache, Resume
from tests.client.clients import Caller, eventually, process_of, request, run, running
from tests.client.fake_engine import HARMLESS
from tests.sim.truth import whole_output


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The gate of the client's engine: while the file exists, each request gets two tokens."""
    return tmp_path_factory.mktemp("gate") / "gate"


@pytest.fixture(scope="module")
def client(gate: Path) -> ProcessClient:  # type: ignore[misc]
    with running(f"step=0.001&gate={gate}") as client:
        yield client


def test_a_started_client_has_the_facts_of_its_engine(client: ProcessClient) -> None:
    facts = client.facts
    assert (facts.vocabulary, facts.max_model_len, facts.block_size) == (61, 4096, 4)
    assert facts.architecture == "FakeForCausalLM"
    assert client.is_well()


def test_the_engine_logs_flags_where_it_names_settings(capfd: pytest.CaptureFixture[str]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("octavo")
    handlers, level = root.handlers[:], ours.level
    try:
        set_up_log("WARNING", {"max_model_len": "--max-model-len"})
        with running("warn=lower max_model_len"):
            pass
    finally:
        root.handlers[:] = handlers
        ours.setLevel(level)
    assert "octavo.engine.build: lower --max-model-len\n" in capfd.readouterr().err


def test_requests_end_by_stop_tokens_and_by_length(client: ProcessClient) -> None:
    whole, _ = whole_output(request("", max_tokens=20), 4096)
    stopped = request("stopped", stop_token_ids=(whole[5],))
    ended = replace(request("ended", ignore_eos=False), eos_token_ids=(whole[5],))
    long = request("long")

    async def world() -> None:
        caller = Caller(client)
        caller.send(stopped, ended, long)
        await caller.all_ended()
        for one in (stopped, ended, long):
            tokens, reason = whole_output(one, 4096)
            assert caller.tokens[one.request_id] == tokens
            assert caller.ends[one.request_id].finish_reason == reason
        assert caller.ends["stopped"].stop_token == whole[5]
        assert caller.ends["ended"].stop_token is None
        stats = caller.ends["long"].stats
        assert stats is not None
        assert (stats.num_prompt_tokens, stats.num_output_tokens) == (3, 20)

    run(world)


def test_log_probabilities_and_hidden_states_arrive(client: ProcessClient) -> None:
    prompt = [index % 60 for index in range(1000)]  # two chunks and more
    asked = request("asked", prompt, logprobs=2, prompt_logprobs=1, max_tokens=4)
    hidden = request("hidden", [5, 6], max_tokens=0, pooling="last")

    async def world() -> None:
        caller = Caller(client)
        caller.send(asked, hidden)
        await caller.all_ended()
        parts = [event.payload for event in caller.events if event.request_id == "asked"]
        payloads = [part for part in parts if isinstance(part, LogprobsPayload)]
        sampled = [item.token_ids[0] for part in payloads for item in part.sampled]
        assert sampled == caller.tokens["asked"]
        prompt_ids = {
            part.prompt_start + offset: one.token_ids
            for part in payloads
            for offset, one in enumerate(part.prompt)
        }
        assert {at: ids[0] for at, ids in prompt_ids.items()} == dict(enumerate(prompt[1:], 1))
        (event,) = (event for event in caller.events if event.request_id == "hidden")
        assert event.payload == HiddenPayload(array("f", [5, 6]))

    run(world)


def test_log_probabilities_continue_after_a_crash(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    asked = request("r", list(range(50)), logprobs=1, prompt_logprobs=0, max_tokens=60)
    with running(f"gate={gate}") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(asked)
            await caller.some_tokens("r", 2)
            process_of(client).kill()
            gate.unlink()
            await caller.all_ended()
            parts = [event.payload for event in caller.events]
            sampled = [
                item.token_ids[0]
                for part in parts
                if isinstance(part, LogprobsPayload)
                for item in part.sampled
            ]
            assert sampled == caller.tokens["r"] == whole_output(asked, 4096)[0]
            assert client.engines[0].supervisor.restarts.num_restarts == 1

        run(world)


def test_forks_share_what_their_parent_has_computed(client: ProcessClient) -> None:
    prompt = list(range(40))
    parent = request("parent", prompt, max_tokens=5)
    forks = [replace(request(f"f{i}", prompt, max_tokens=5), parent_id="parent") for i in range(2)]

    async def world() -> None:
        caller = Caller(client)
        caller.send(parent, *forks)
        await caller.all_ended()
        cached = [caller.ends[fork.request_id].stats for fork in forks]
        assert all(stats is not None and stats.num_cached_tokens >= 36 for stats in cached)

    run(world)


def test_abort_pause_resume_and_reset(client: ProcessClient, gate: Path) -> None:
    prompt = [7] * 41

    async def world() -> None:
        caller = Caller(client)
        gate.touch()
        caller.send(request("long", prompt, max_tokens=4000))
        await caller.some_tokens("long", 2)
        caller.send(Abort("long"), Abort("unknown"))
        gate.unlink()
        await caller.all_ended()
        assert caller.ends["long"].finish_reason == "abort"
        assert caller.ends["long"].stats is not None

        paused = client.command(Pause())
        caller.send(request("paused", prompt))
        assert (await paused).error is None
        await eventually(lambda: client.snapshot().is_paused)
        assert not caller.tokens["paused"]
        client.command(Resume())
        await caller.all_ended()
        assert _cached_tokens(caller, "paused") == 40

        client.command(ResetPrefixCache())
        caller.send(request("fresh", prompt))
        await caller.all_ended()
        assert _cached_tokens(caller, "fresh") == 0

    run(world)


def test_salts_encoder_input_and_holds_reach_the_engine(client: ProcessClient) -> None:
    prompt = [11] * 40

    async def world() -> None:
        caller = Caller(client)
        for name, salts in (("first", ()), ("other", ((7, b"image"),)), ("same", ((7, b"image"),))):
            caller.send(replace(request(name, prompt), salts=salts))
            await caller.all_ended()
        cached = [_cached_tokens(caller, name) for name in ("first", "other", "same")]
        assert cached == [0, 4, 36]  # whole blocks before the salted position, and all but the last
        encoder = EncoderInput(10, b"sound")
        caller.send(replace(request("encoder"), encoder=encoder))
        caller.send(replace(request("salted"), salts=((0, b"d" * 65),)))
        await caller.all_ended()
        assert caller.ends["encoder"].finish_reason == "refused"
        assert "no encoder" in str(caller.ends["encoder"].message)
        assert caller.ends["salted"].finish_reason == "refused"
        caller.send(replace(request("held"), holds=(ADAPTER,)), request("free"))
        await caller.until(lambda: "free" in caller.ends)
        assert not caller.tokens["held"]
        caller.send(Abort("held"))
        await caller.all_ended()

    run(world)


def _cached_tokens(caller: Caller, name: str) -> int:
    stats = caller.ends[name].stats
    assert stats is not None
    return stats.num_cached_tokens


def test_a_refused_request_fails_alone(client: ProcessClient) -> None:
    def identity(prompt: object, output: object, logits: object) -> object:
        return logits

    empty = request("empty", [])
    function = request("function", logits_processors=(identity,))
    surrogate = replace(request("surrogate"), cache_scope="\ud800")
    good = request("good")

    async def world() -> None:
        caller = Caller(client)
        caller.send(empty, function, surrogate, good)
        await caller.all_ended()
        ends = {name: (end.finish_reason, end.message) for name, end in caller.ends.items()}
        assert ends["empty"] == (
            "refused",
            "the prompt has no tokens; at least one is needed to begin from",
        )
        assert ends["function"][0] == "refused"
        assert "engine='inline'" in str(ends["function"][1])
        assert ends["surrogate"][0] == "refused"
        assert ends["good"] == ("length", None)

    run(world)


def test_a_request_that_is_too_large_to_send_is_refused_alone(
    client: ProcessClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def world() -> None:
        caller = Caller(client)
        with monkeypatch.context() as patch:
            patch.setattr(messages, "MAX_FRAME_BYTES", 2000)
            caller.send(request("small"), request("large", [1] * 1000), request("other"))
        await caller.all_ended()
        assert caller.ends["large"].finish_reason == "refused"
        assert "at most 2000 can be sent" in str(caller.ends["large"].message)
        assert caller.ends["small"].finish_reason == caller.ends["other"].finish_reason == "length"

    run(world)


def test_statistics_are_sent_and_never_fall() -> None:
    with running("step=0.001") as client:

        async def world() -> None:
            caller = Caller(client)
            seen: list[EngineSnapshot] = []
            for name in ("a", "b"):
                caller.send(request(name, max_tokens=100))
                await caller.all_ended()
                finished = {"length": len(seen) + 1}
                await eventually(partial(_has_finished, client, finished))
                seen.append(client.snapshot())
                if name == "a":
                    process_of(client).kill()
            assert all(one.num_steps < two.num_steps for one, two in pairwise(seen))
            assert seen[1].num_tokens == 2 * (3 + 99)
            assert seen[1].load == EngineLoad(num_free_blocks=seen[1].num_blocks - 1)
            assert 0 < len(seen[1].recent) == len(seen[1].recent_seconds) <= 64
            vitals = client.members[0].vitals
            assert (vitals.num_deaths, vitals.num_restarts) == (1, 1)
            assert vitals.down_seconds(time.monotonic()) > 0

        run(world)


def test_the_load_is_right_while_a_step_runs(tmp_path: Path) -> None:
    """The engine is held in a step: what it cannot report now is known all the same."""
    gate = tmp_path / "gate"
    gate.touch()
    loading = tmp_path / "loading"
    with running(f"gate={gate}&slots=2&loading={loading}") as client:

        async def world() -> None:
            caller = Caller(client)
            caller.send(*[request(name, max_tokens=9) for name in "abc"])
            await caller.some_tokens("b", HARMLESS)
            assert client.snapshot().load[:2] == (2, 1)
            caller.send(request("d"))
            assert client.snapshot().load[:2] == (2, 2)
            loading.touch()  # the next engine takes no request before the load is read
            process_of(client).kill()
            await eventually(lambda: client.members[0].vitals.num_deaths == 1)
            assert client.snapshot().load[:2] == (0, 4)
            gate.unlink()
            loading.unlink()
            await caller.all_ended()
            assert client.snapshot().load[:2] == (0, 0)

        run(world)


def _has_finished(client: ProcessClient, finished: dict[str, int]) -> bool:
    return client.snapshot().num_finished == finished


def test_all_engines_of_a_client_name_kv_alike_and_no_other_client_does() -> None:
    with running("key=shown") as client, running("key=shown") as other:

        async def world() -> None:
            caller = Caller(client)
            process_of(client).kill()
            caller.send(request("again"))
            await caller.all_ended()
            newest = client.engines[0].supervisor._newest_facts
            assert newest is not None
            assert newest is not client.facts
            assert newest.name == client.facts.name != other.facts.name

        run(world)
