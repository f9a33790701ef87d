"""The comparison of drafts with peers: what is counted, the ways, and the lines of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.drafts import peers
from benchmarks.drafts.peers import LLAMA, NONE, OCTAVO, VLLM, Part, Sample, Way
from benchmarks.drafts.prompts import REPETITIVE
from benchmarks.peers.cases import Case
from benchmarks.peers.engines import EngineError
from benchmarks.peers.http_client import Answer
from benchmarks.peers.servers import ServerEngine

METRICS = """\
# HELP vllm:spec_decode_num_draft_tokens_total Drafts verified.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 9.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 40.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 3.1e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 20.0
"""


def sample(speed: float, *texts: str) -> Sample:
    """Return a sample of answers of eleven tokens each, with ten drafts, of which four were right.

    With its prompts it took twice as long.
    """
    seconds = 10 * len(texts) / speed
    return Sample(texts, 11 * len(texts), seconds, 2 * seconds, 10, 4)


def part(**samples: list[Sample]) -> Part:
    """Return a part with samples, each named by its engine and its way: `octavo__suffix`."""
    names = {"octavo": OCTAVO, "llama": LLAMA, "vllm": VLLM}
    made = Part("q4_1", [], {"ordinary": [[1]]}, [], ends=True)
    for name, each in samples.items():
        engine, _, drafts = name.partition("__")
        made.samples["ordinary", names[engine], drafts] = each
    return made


def test_drafts_are_counted_over_all_engines_of_a_server() -> None:
    assert peers.counts_in(METRICS) == (42, 31)
    assert peers.counts_in(METRICS.replace("vllm:", "octavo:")) == (42, 31)
    assert peers.counts_in("vllm:num_requests_running 0.0\n") == (0, 0)


def test_the_time_of_an_answer_begins_with_its_first_token_and_ends_when_it_is_whole() -> None:
    answers = [
        (Answer(1.0, 5, (2.0, 3.0), "ab", {"draft_n": 4, "draft_n_accepted": 3}), 4.0),
        (Answer(4.0, 4, (4.5,), "c"), 5.0),
    ]
    found = peers.sample_of(answers, (10, 7), (15, 9))
    assert found == Sample(("ab", "c"), 9, 2.5, 4.0, 4 + 5, 3 + 2)
    assert found.speed == 7 / 2.5
    assert found.whole_speed == 9 / 4.0


def test_prompts_come_from_all_over_the_list() -> None:
    assert peers.some("abcdefgh", 4) == "aceg"
    assert peers.some("abcdefgh", 3) == "ace"
    assert peers.some("ab", 4) == "ab"
    assert len(peers.some(REPETITIVE, 4)) == 4


def test_the_drafter_is_given_to_each_server_beside_the_other_model() -> None:
    command = ("serve", "old.gguf", "--port", "{port}")
    servers = {engine: ServerEngine(engine, command) for engine in (OCTAVO, LLAMA)}
    ways = peers.pair_ways(servers, "old.gguf", Path("big"), Path("small"), 4)
    plain, drafting, _, of_llama = ways
    assert plain.server.command == ("serve", "big", "--port", "{port}")
    more = ("--model-draft", "small", "--spec-draft-n-max", "4")
    assert drafting.server.command == plain.server.command + more
    assert (plain.drafts, drafting.drafts) == (NONE, "draft model")
    assert of_llama.server.command == (*drafting.server.command, "--spec-type", "draft-simple")


def test_each_engine_also_answers_without_drafts() -> None:
    servers = {engine: ServerEngine(engine, (engine,)) for engine in (OCTAVO, LLAMA, VLLM)}
    ways = list(peers.word_ways(servers))
    for engine in servers:
        plain, *drafting = [way for way in ways if way.engine == engine]
        assert (plain.drafts, plain.server.command) == (NONE, (engine,))
        assert drafting
        for way in drafting:
            way.server.command[-1].format(port=1, streams=1, context=1)  # braces are doubled


def test_a_row_has_medians_gains_and_equal_texts() -> None:
    both = part(
        octavo__none=[sample(100, "a", "b"), sample(50, "a", "b"), sample(80, "a", "b")],
        octavo__suffix=[sample(200, "a", "b"), sample(150, "a", "b"), sample(160, "a", "c")],
        llama__none=[sample(20, "x", "y")] * 3,
    )
    plain, drafting, peer = [row.removeprefix("| q4_1 | ordinary | ") for row in peers.lines(both)]
    assert plain == "octavo | none | 80.0 (50.0–100.0) | 44.0 | – | – | – | – |"
    assert drafting == "octavo | suffix | 160.0 (150.0–200.0) | 88.0 | 2.00 | 30 | 12 | 5 of 6 |"
    assert peer == "llama.cpp | none | 20.0 (20.0–20.0) | 11.0 | – | – | – | – |"
    assert list(peers.differing(both)) == ["q4_1, ordinary, suffix: 1 of 6 texts differ"]


def test_our_best_drafts_are_compared_with_the_fastest_way_of_a_peer() -> None:
    all_ways = part(
        octavo__none=[sample(900, "a")],
        octavo__ngram=[sample(150, "a")],
        octavo__suffix=[sample(120, "a")],
        llama__none=[sample(100, "a")],
        llama__slow=[sample(60, "a")],
    )
    (line,) = peers.verdicts(all_ways)
    assert "octavo ngram beside llama.cpp none: ratio 1.50 (1.50 to 1.50)" in line
    assert not list(peers.verdicts(part(octavo__none=[sample(1, "a")])))


def test_a_way_that_fails_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def measured(way: Way, of: Part, tokens: int) -> dict[str, Sample]:
        asked.append(way.drafts)
        if way.drafts == "b" and asked.count("b") == 2:
            raise EngineError("it fell over")
        return {"ordinary": sample(tokens, "a")}

    monkeypatch.setattr(peers, "measured", measured)
    ways = [Way(OCTAVO, each, ServerEngine(each, ())) for each in "abc"]
    made = Part("q4_1", ways, {"ordinary": [[1]]}, [], ends=True)
    made.measure(3, 7)
    assert "".join(asked) == "abc" + "cba" + "ac"  # in turns, the other way round each time
    assert list(made.of("ordinary", OCTAVO)) == ["a", "c"]
    assert "octavo b is left out: it fell over" in capsys.readouterr().err


def test_the_longest_prompt_fits_what_servers_are_started_for() -> None:
    assert isinstance(peers.CASE, Case)
    longest = max(map(len, peers.chats(REPETITIVE)))
    assert longest <= peers.CASE.prompt_tokens
