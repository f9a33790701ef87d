"""Compare drafts with those of peers: the same weights, prompts and requests, in turns.

    make peers                                 install them (once)
    python -m benchmarks.drafts.peers          llama-server and vLLM, where they are installed
    python -m benchmarks.drafts.peers --parts q4_1,draft --rounds 5 --tokens 128 --prompts 8

The parts, each with one stream, without sampling, and in every engine also without drafts:

    q4_1    SmolLM2-135M in four bits: n-grams and suffixes of Octavo, n-grams of llama-server
    bf16    the same in bf16: n-grams and suffixes of Octavo, n-grams of vLLM
    draft   the shape of a 1B Llama, random weights in bf16, drafted by its own first layer;
            Octavo and llama-server read the same two files

The prompts are those of prompts.py: some whose answers repeat them, and ordinary ones. A server is
started anew for each round, so that no engine knows an answer from the round before; vLLM's, which
keep none, are stopped in between. A figure is the tokens a second behind the first one, until the
answer is whole. Engines round in ways of their own, so their texts may differ; an engine's texts
with and without drafts are compared, and Octavo's must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import re
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.drafts.prompts import ORDINARY, REPETITIVE
from benchmarks.peers import http_client, models, rows
from benchmarks.peers.cases import Case
from benchmarks.peers.engines import EngineError
from benchmarks.peers.found import Places, find
from benchmarks.peers.http_client import Answer, ClientError
from benchmarks.peers.servers import ServerEngine
from benchmarks.peers.shaped import PEERS, ROOT, ratio
from octavo.api.text_model import load_tokenizer
from octavo.loader import resolve
from octavo.observe.machine import num_cores, processor
from octavo.text.chat.template import ChatTemplate, choose_template

OCTAVO, LLAMA, VLLM = "octavo", "llama.cpp", "vllm"
NONE = "none"
MUST, AIM = 1.3, 2.0
# The longest prompt and answer that servers are started for.
CASE = Case("drafts", "drafts", "http", 1, 512, 256, 0, 1)
WARM = ("What is a lighthouse?", "Write the words red, green, blue again and again.")
WARM_TOKENS = 32
PAIR_PROMPT = 100  # tokens of the prompts of random weights


def llama_words(kind: str, *settings: str) -> tuple[str, ...]:
    """Return llama-server's flags for a kind of n-grams with settings of its own."""
    words = [each.split() for each in settings]
    flags = [word for name, value in words for word in (f"--spec-ngram-{kind}-{name}", value)]
    return ("--spec-type", f"ngram-{kind}", *flags)


# The lengths that Octavo has unless others are given; braces are doubled in a server's command.
VLLM_NGRAM = (
    '{{"method": "ngram", "num_speculative_tokens": 5, '
    '"prompt_lookup_max": 4, "prompt_lookup_min": 2}}'
)
WORDS = {
    OCTAVO: {
        NONE: (),
        "ngram": ("--spec-method", "ngram"),
        "suffix": ("--spec-method", "suffix"),
    },
    LLAMA: {
        NONE: (),
        # Its own lengths suit long texts alone: n-grams of 12 tokens or more, drafts of 48.
        "ngram-simple": ("--spec-type", "ngram-simple"),
        "ngram-simple 4/8": llama_words("simple", "size-n 4", "size-m 8"),
        "ngram-map-k 4/8": llama_words("map-k", "size-n 4", "size-m 8"),
        "ngram-mod 4/8": llama_words("mod", "n-match 4", "n-min 1", "n-max 8"),
        "ngram-cache": ("--spec-type", "ngram-cache"),
    },
    VLLM: {
        NONE: (),
        "ngram": ("--speculative-config", VLLM_NGRAM),
    },
}
HEAD = (
    *("part", "prompts", "engine", "drafts by", "tok/s", "with the prompt"),
    *("times as fast", "drafts", "accepted", "texts as without"),
)
Prompts = dict[str, list[list[int]]]  # token ids, by the kind of the prompts


@dataclass(frozen=True, slots=True)
class Way:
    """A server, and what its drafts come from."""

    engine: str
    drafts: str
    server: ServerEngine


@dataclass(frozen=True, slots=True)
class Sample:
    """The answers of one round to the prompts of one kind."""

    texts: tuple[str, ...]
    tokens: int
    seconds: float  # behind the first token of each answer
    whole_seconds: float
    drafted: int = 0
    accepted: int = 0

    @property
    def speed(self) -> float:
        """Tokens a second behind the first one of each answer."""
        return (self.tokens - len(self.texts)) / self.seconds

    @property
    def whole_speed(self) -> float:
        """Tokens a second with the time of the prompts."""
        return self.tokens / self.whole_seconds


@dataclass
class Part:
    """Ways that have the same weights, and their samples by kind of prompts, of each round."""

    name: str
    ways: list[Way]
    prompts: Prompts
    warm: list[list[int]]  # prompts that come first in each round, and are not measured
    ends: bool  # whether an answer may be shorter than asked for
    samples: dict[tuple[str, str, str], list[Sample]] = field(default_factory=dict)

    def measure(self, rounds: int, tokens: int) -> None:
        """Measure every way in each round; leave out one that fails."""
        for number in range(rounds):
            for way in self.ways[:: (-1) ** number]:
                try:
                    found = measured(way, self, tokens)
                except (EngineError, ClientError, OSError, TimeoutError) as error:
                    print(f"{way.engine} {way.drafts} is left out: {error}", file=sys.stderr)
                    way.server.close()
                    self.ways.remove(way)
                    continue
                for kind, sample in found.items():
                    self.samples.setdefault((kind, way.engine, way.drafts), []).append(sample)
                    told = f"{sample.speed:.1f} tok/s, {sample.accepted} of {sample.drafted}"
                    print(self.name, number + 1, kind, way.engine, way.drafts, told, flush=True)

    def of(self, kind: str, engine: str) -> dict[str, list[Sample]]:
        """Return the samples of an engine, by what drafts, if they are of every round."""
        whole = max((len(each) for each in self.samples.values()), default=0)
        return {
            drafts: each
            for (of_kind, of_engine, drafts), each in self.samples.items()
            if (of_kind, of_engine) == (kind, engine) and len(each) == whole
        }

    def close(self) -> None:
        """End the servers that a failure or a round has left running."""
        for way in self.ways:
            way.server.close()


def measured(way: Way, part: Part, tokens: int) -> dict[str, Sample]:
    """Return what a server, which is started first, answers to the prompts of each kind."""
    found = {}
    with way.server.serving(CASE) as port:
        answered(port, part.warm, WARM_TOKENS, ends=part.ends)
        for kind, each in part.prompts.items():
            before = counted(port)
            answers = answered(port, each, tokens, ends=part.ends)
            found[kind] = sample_of(answers, before, counted(port))
    return found


def answered(
    port: int, prompts: list[list[int]], tokens: int, *, ends: bool
) -> list[tuple[Answer, float]]:
    """Return the answers, one after the other, each with the time at which it was whole."""
    asked = [http_client.request(port, each, tokens, ignore_eos=not ends) for each in prompts]
    streams = asyncio.run(http_client.send(port, asked, 1))
    return [(http_client.read(stream), stream.parts[-1][0]) for stream in streams]


def counted(port: int) -> tuple[int, int]:
    """Return the drafts and the accepted ones that a server has counted; llama-server has none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode()
        return counts_in(text) if response.status == 200 else (0, 0)
    finally:
        connection.close()


def counts_in(metrics: str) -> tuple[int, int]:
    """Return the drafts and the accepted ones in metrics that have vLLM's names."""

    def total(name: str) -> int:
        line = rf"^\w+:spec_decode_num_{name}_tokens_total(?:{{[^}}]*}})? (\S+)$"
        return sum(int(float(value)) for value in re.findall(line, metrics, re.MULTILINE))

    return total("draft"), total("accepted")


def sample_of(
    answers: Sequence[tuple[Answer, float]], before: tuple[int, int], after: tuple[int, int]
) -> Sample:
    """Return the sample of answers, with the server's counts before and after them."""
    timings = [answer.timings for answer, _ in answers]
    drafted, accepted = (
        sum(int(each.get(name, 0)) for each in timings) + last - first
        for name, first, last in zip(("draft_n", "draft_n_accepted"), before, after, strict=True)
    )
    return Sample(
        tuple(answer.text for answer, _ in answers),
        sum(answer.tokens for answer, _ in answers),
        sum(ended - answer.events[0] for answer, ended in answers),
        sum(ended - answer.began for answer, ended in answers),
        drafted,
        accepted,
    )


def chats(prompts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of prompts, each the first message of a conversation with SmolLM2."""
    tokenizer = load_tokenizer(resolve("smollm2"))
    source = choose_template(tokenizer.chat_templates, with_tools=False)
    template = ChatTemplate(source, tokenizer.special_tokens)
    texts = (
        template.render([{"role": "user", "content": each}], add_generation_prompt=True)
        for each in prompts
    )
    return [list(tokenizer.encode(text, add_special_tokens=False)) for text in texts]


def some(prompts: Sequence[str], count: int) -> Sequence[str]:
    """Return so many prompts from all over a list, since neighbours are alike."""
    return prompts[:: max(1, len(prompts) // count)][:count]


def parts_of(asked: argparse.Namespace, places: Places) -> Iterator[Part]:
    """Yield the parts that were asked for, each with the engines that are installed."""
    told = {
        "repetitive": chats(some(REPETITIVE, asked.prompts)),
        "ordinary": chats(some(ORDINARY, asked.prompts)),
    }
    four = {OCTAVO: rows.SERVED[0], LLAMA: rows.LLAMA_SERVED[0]}
    for name in asked.parts.split(","):
        names = {OCTAVO: rows.SERVED[1], VLLM: rows.VLLM_SERVED[0]} if name == "bf16" else four
        kinds = [OCTAVO, "vllm" if VLLM in names else "llama"]
        servers = {
            each.name: each
            for each in find(places, kinds, set(names.values()))
            if isinstance(each, ServerEngine)
        }
        installed = {engine: servers[row] for engine, row in names.items() if row in servers}
        if name == "draft":
            model, drafter = models.drafting_pair(places.models, asked.share)
            ways = pair_ways(installed, str(models.smollm2().gguf), model, drafter, asked.drafts)
            ids = [
                [5 + (index * 7 + prompt) % 251 for index in range(PAIR_PROMPT)]
                for prompt in range(asked.prompts + 1)
            ]
            yield Part(name, list(ways), {"random": ids[1:]}, ids[:1], ends=False)
        else:
            yield Part(name, list(word_ways(installed)), told, chats(WARM), ends=True)


def word_ways(servers: dict[str, ServerEngine]) -> Iterator[Way]:
    """Yield each server without drafts, and with each kind of drafts from the text alone."""
    for engine, server in servers.items():
        for drafts, more in WORDS[engine].items():
            named = f"{server.name} {drafts}"
            yield Way(engine, drafts, replace(server, name=named, command=server.command + more))


def pair_ways(
    servers: dict[str, ServerEngine], old: str, model: Path, drafter: Path, most: int
) -> Iterator[Way]:
    """Yield each server with another model in place of its own, without and with a drafter."""
    for engine, server in servers.items():
        command = tuple(str(model) if word == old else word for word in server.command)
        # llama-server does not draft with a model whose file names no way.
        way = ("--spec-type", "draft-simple") if engine == LLAMA else ()
        drafting: tuple[str, ...] = (
            "--model-draft",
            str(drafter),
            "--spec-draft-n-max",
            str(most),
            *way,
        )
        for drafts, more in {NONE: (), "draft model": drafting}.items():
            named = f"{server.name} {drafts}"
            yield Way(engine, drafts, replace(server, name=named, command=command + more))


def median(samples: Sequence[Sample]) -> float:
    """Return the median of the tokens a second behind the first one, over all rounds."""
    return statistics.median(each.speed for each in samples)


def best(found: dict[str, list[Sample]]) -> str:
    """Return what drafts with the highest median of tokens a second."""
    return max(found, key=lambda drafts: median(found[drafts]))


def equal(samples: Sequence[Sample], plain: Sequence[Sample]) -> tuple[int, int]:
    """Return how many texts are those that came without drafts in the same round, and of many."""
    pairs = [
        pair
        for mine, other in zip(samples, plain, strict=True)
        for pair in zip(mine.texts, other.texts, strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def lines(part: Part) -> Iterator[str]:
    """Yield the rows of the table: of each kind of prompts, engine and way."""
    for kind in part.prompts:
        for engine in (OCTAVO, LLAMA, VLLM):
            found = part.of(kind, engine)
            for drafts, samples in found.items():
                speeds = [each.speed for each in samples]
                whole = statistics.median(each.whole_speed for each in samples)
                cells = [part.name, kind, engine, drafts]
                cells.append(f"{median(samples):.1f} ({min(speeds):.1f}–{max(speeds):.1f})")
                cells.append(f"{whole:.1f}")
                if drafts == NONE or NONE not in found:
                    cells += ["–"] * 4
                else:
                    same, of = equal(samples, found[NONE])
                    gains = [a.speed / b.speed for a, b in zip(samples, found[NONE], strict=True)]
                    cells.append(f"{statistics.median(gains):.2f}")
                    cells.append(str(sum(each.drafted for each in samples)))
                    cells.append(str(sum(each.accepted for each in samples)))
                    cells.append(f"{same} of {of}")
                yield f"| {' | '.join(cells)} |"


def verdicts(part: Part) -> Iterator[str]:
    """Yield a line for each peer and kind: Octavo's best drafts beside the peer's best way.

    The peer's way may be the one without drafts, where that is its fastest.
    """
    for kind in part.prompts:
        ours = part.of(kind, OCTAVO)
        ours.pop(NONE, None)
        for peer in (LLAMA, VLLM):
            theirs = part.of(kind, peer)
            if ours and theirs:
                mine, beside = best(ours), best(theirs)
                compared = [[each.speed for each in s] for s in (ours[mine], theirs[beside])]
                named = f"{OCTAVO} {mine} beside {peer} {beside}"
                yield f"{part.name}, {kind}: {named}: {ratio(*compared)}, must {MUST}, aim {AIM}"


def differing(part: Part) -> Iterator[str]:
    """Yield each way of Octavo whose texts are not those that came without drafts."""
    for kind in part.prompts:
        found = part.of(kind, OCTAVO)
        for drafts, samples in found.items():
            same, of = equal(samples, found.get(NONE, samples))
            if same < of:
                yield f"{part.name}, {kind}, {drafts}: {of - same} of {of} texts differ"


def arguments() -> argparse.Namespace:
    """Parse the command line of the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="q4_1,bf16,draft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer")
    parser.add_argument("--prompts", type=int, default=4, help="of each kind")
    parser.add_argument("--share", type=float, default=0.1, help="of what later layers add")
    parser.add_argument("--drafts", type=int, default=4, help="most drafts of a draft model")
    parser.add_argument("--threads", type=int, default=num_cores()[0])
    parser.add_argument("--installed", type=Path, default=PEERS)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    return parser.parse_args()


def main() -> None:
    """Measure part after part, and print the table and the ratios."""
    asked = arguments()
    log = ROOT / "build" / "drafts.log"
    log.parent.mkdir(exist_ok=True)
    places = Places.installed_in(asked.installed.absolute(), asked.models, log, asked.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # runs `finally`
    parts = []
    for part in parts_of(asked, places):
        try:
            part.measure(asked.rounds, asked.tokens)
        finally:
            part.close()
        parts.append(part)
    print(f"\n{processor()[0]}, {places.threads} threads, {asked.rounds} rounds\n")
    print(
        "| part | prompts | engine | drafts by | tok/s | with the prompt | times as fast ", end=""
    )
    print("| drafts | accepted | texts as without |\n" + "| --- " * 10 + "|")
    for each in (lines, verdicts, differing):
        for part in parts:
            for line in each(part):
                print(line)
    if any(any(differing(part)) for part in parts):
        raise SystemExit("texts of Octavo differ with and without drafts")


if __name__ == "__main__":
    main()
