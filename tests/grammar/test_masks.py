"""Masks against brute force: every token is tried against all texts of a shape."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.failures import why_failed
from octavo.grammar.llguidance_engine import MAX_KEPT, LLGuidanceEngine
from octavo.grammar.protocol import Forcing, GrammarError, Matcher
from octavo.grammar.shapes import grammar_of
from tests.grammar.tiny import END, allowed, make_vocabulary, random_regex

VOCABULARY = make_vocabulary()
SIZE = len(VOCABULARY.tokens)
ENGINE = LLGuidanceEngine(VOCABULARY, forcing="off")


def mask_of(matcher: Matcher) -> set[int]:
    """Return the tokens that may come next."""
    row = np.zeros(-(-SIZE // 32), np.uint32)
    matcher.fill(row)
    return allowed(row, SIZE)


def expected(texts: set[bytes], prefix: bytes) -> set[int]:
    """Return the tokens that lead to one of the texts, found by trying each of them."""
    found = {
        token
        for token, piece in enumerate(VOCABULARY.tokens)
        if piece
        and token not in VOCABULARY.special
        and any(text.startswith(prefix + piece) for text in texts)
    }
    return found | ({END} if prefix in texts else set())


def walk(matcher: Matcher, texts: set[bytes], random: Random) -> None:
    """Continue a text at random to its end, comparing each mask."""
    prefix, taken = b"", 0
    while True:
        mask = mask_of(matcher)
        assert mask == expected(texts, prefix), (prefix, mask)
        token = random.choice(sorted(mask))
        if token == END:
            break
        assert matcher.num_accepted([token, END]) >= 1
        matcher.accept([token])
        prefix += VOCABULARY.tokens[token]
        taken += 1
    half = taken // 2
    before = mask_of(matcher)
    copied = matcher.copy()
    copied.roll_back(half)
    assert mask_of(matcher) == before, "a copy has a state of its own"


@pytest.mark.parametrize("seed", range(200))
def test_the_mask_of_a_regex_has_exactly_the_tokens_that_lead_to_a_text(seed: int) -> None:
    random = Random(seed)
    regex, texts = random_regex(random)
    matcher = ENGINE.compile(grammar_of(StructuredOutputsParams(regex=regex)).text)
    listed = {text.encode() for text in texts}
    for _ in range(3):
        walk(matcher.copy(), listed, random)


@pytest.mark.parametrize("seed", range(40))
def test_the_mask_of_a_choice_has_exactly_the_tokens_that_lead_to_a_text(seed: int) -> None:
    random = Random(seed)
    texts = {text for text in random_regex(random)[1] if text} or {"a"}
    matcher = ENGINE.compile(grammar_of(StructuredOutputsParams(choice=tuple(sorted(texts)))).text)
    walk(matcher, {text.encode() for text in texts}, random)


def test_tokens_can_be_taken_back_one_by_one() -> None:
    matcher = ENGINE.compile(grammar_of(StructuredOutputsParams(regex="(ab|c)(é|0)1{2}")).text)
    masks, tokens = [mask_of(matcher)], VOCABULARY.encode("abé11")
    for token in tokens:
        matcher.accept([token])
        masks.append(mask_of(matcher))
    for before in reversed(masks[:-1]):
        matcher.roll_back(1)
        assert mask_of(matcher) == before


def test_a_token_that_the_grammar_does_not_allow_is_refused() -> None:
    matcher = ENGINE.compile(grammar_of(StructuredOutputsParams(regex="ab")).text)
    with pytest.raises(GrammarError):
        matcher.accept(VOCABULARY.encode("c"))


def test_forced_tokens_are_those_of_the_models_own_tokenisation() -> None:
    engine = LLGuidanceEngine(VOCABULARY)
    matcher = engine.compile(grammar_of(StructuredOutputsParams(regex="abc[01]")).text)
    assert matcher.forced(8) == list(VOCABULARY.encode("abc"))
    assert mask_of(matcher) == {VOCABULARY.encode("abc")[0]}


def test_a_text_may_end_only_where_its_shape_does() -> None:
    matcher = ENGINE.compile(grammar_of(StructuredOutputsParams(choice=("a", "ab"))).text)
    assert END not in mask_of(matcher)
    matcher.accept(VOCABULARY.encode("a"))
    assert END in mask_of(matcher)
    matcher.accept(VOCABULARY.encode("b"))
    assert mask_of(matcher) == {END}


def random_text(engine: LLGuidanceEngine, text: str, seed: int) -> list[set[int] | str]:
    """Write a text of random tokens; return the masks, and the error if its grammar fails."""
    seen: list[set[int] | str] = []
    matcher, chance = engine.compile(text), Random(seed)
    try:
        for _ in range(60):
            mask = mask_of(matcher)
            seen.append(mask)
            matcher.accept([chance.choice(sorted(mask - {END}))])
    except GrammarError as error:
        seen.append(str(error))
    return seen


def test_no_text_spends_what_another_of_its_grammar_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bound on a lexer's states holds for one text, so that no other changes what it may be."""
    bounds = LLParserLimits(max_lexer_states=85)
    monkeypatch.setattr("octavo.grammar.llguidance_engine.LIMITS", bounds)
    text = grammar_of(StructuredOutputsParams(regex="([ab]*a[ab]{6}c)+")).text
    shared = LLGuidanceEngine(VOCABULARY)
    ends = set()
    for seed in range(12):
        alone = random_text(LLGuidanceEngine(VOCABULARY), text, seed)
        has_failed = isinstance(alone[-1], str)
        num_masks = len(alone) - has_failed
        assert random_text(shared, text, seed)[:num_masks] == alone[:num_masks]
        ends.add(has_failed)
    assert ends == {True, False}, "none reaches the bound, or all: this shows nothing"


def note_compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which each grammar is added that is compiled from now on."""
    compiled: list[str] = []
    alone = LLGuidanceEngine.compile_alone

    def compile_alone(engine: LLGuidanceEngine, text: str) -> LLMatcher:
        compiled.append(text)
        return alone(engine, text)

    monkeypatch.setattr(LLGuidanceEngine, "compile_alone", compile_alone)
    return compiled


def test_a_grammar_is_compiled_once_for_many_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = note_compiled(monkeypatch)
    engine = LLGuidanceEngine(VOCABULARY)
    first, second = engine.compile("start: /ab*/"), engine.compile("start: /ab*/")
    first.accept(VOCABULARY.encode("a"))
    assert END in mask_of(first)
    assert END not in mask_of(second)
    assert len(compiled) == 1
    for number in range(MAX_KEPT):
        engine.compile(f"start: /{number}/")
    engine.compile("start: /ab*/")
    assert len(compiled) == MAX_KEPT + 2, "the one that was not used for longest is forgotten"
    engine.forget()
    engine.compile("start: /ab*/")
    assert len(compiled) == MAX_KEPT + 3


def test_masks_of_many_texts_at_once_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads compute them; a text that reaches a bound because of others has its mask as well."""
    bounds = LLParserLimits(max_lexer_states=85)
    monkeypatch.setattr("octavo.grammar.llguidance_engine.LIMITS", bounds)
    compiled = note_compiled(monkeypatch)
    hard = grammar_of(StructuredOutputsParams(regex="([ab]*a[ab]{6}c)+")).text
    texts = [hard, "start: /a[bc]*/", hard, "start: /[a-z]{3,50}/"] * 3
    engines = [LLGuidanceEngine(VOCABULARY, num_threads=count) for count in (1, 3)]
    matchers = [[engine.compile(text) for text in texts] for engine in engines]
    num_compiled = len(compiled)
    rows = np.zeros((len(texts) + 1, engines[0].num_words), np.uint32)
    chance = Random(1)
    for _ in range(40):
        masks = []
        for engine, each in zip(engines, matchers, strict=True):
            work = [(matcher, 1 + at) for at, matcher in enumerate(each)]
            assert engine.fill_all(rows, work) == [None] * len(each)
            masks.append(rows[1 : 1 + len(each)].copy())
        assert np.array_equal(masks[0], masks[1])
        drawn = [sorted(allowed(row, SIZE) - {END}) for row in masks[0]]
        tokens = [chance.choice(each) if each else END for each in drawn]
        for each in matchers:
            for matcher, token in zip(list(each), tokens, strict=True):
                if token == END:
                    each.remove(matcher)
                else:
                    matcher.accept([token])
    assert len(compiled) > num_compiled, "no lexer was full, so that this shows half of it"


def test_masks_are_computed_one_by_one_where_no_threads_can_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: int) -> None:
        raise RuntimeError("no thread can be started")

    monkeypatch.setattr("octavo.grammar.llguidance_engine.LLExecutor", fail)
    engine = LLGuidanceEngine(VOCABULARY, num_threads=2)
    matchers: list[Matcher] = [engine.compile(f"start: /{each}+/") for each in ("a", "[ab]")]
    rows = np.zeros((2, engine.num_words), np.uint32)
    assert engine.fill_all(rows, list(zip(matchers, (0, 1), strict=True))) == [None, None]
    assert [allowed(row, SIZE) for row in rows] == list(map(mask_of, matchers))


class PanicException(BaseException):
    """A panic of the library, as it reaches Python."""


class PanickingLibrary:
    """A matcher of the library on which every call panics."""

    def __getattr__(self, name: str) -> Callable[..., object]:
        def panic(*given: object) -> object:
            raise PanicException("index out of bounds")

        return panic


@pytest.mark.parametrize("forcing", ["canonical", "single"])
def test_a_panic_of_the_library_is_the_fault_of_the_shape(
    monkeypatch: pytest.MonkeyPatch, forcing: Forcing
) -> None:
    engine = LLGuidanceEngine(VOCABULARY, forcing=forcing)
    matcher = engine.compile("start: /[ab]+/")
    row = np.zeros(engine.num_words, np.uint32)
    monkeypatch.setattr(engine, "compile_alone", lambda text: PanickingLibrary())
    calls: list[Callable[[], object]] = [
        lambda: matcher.fill(row),
        lambda: matcher.accept([2]),
        lambda: matcher.num_accepted([2]),
        lambda: matcher.forced(8),
        lambda: matcher.roll_back(1),
    ]
    for call in calls:
        matcher.inner = PanickingLibrary()  # type: ignore[assignment]
        with pytest.raises(GrammarError) as caught:
            call()
        assert why_failed(caught.value).is_impossible


def test_forced_text_without_an_end_is_not_looked_for() -> None:
    """The library would follow what this grammar forces for minutes, and fill the memory."""
    written = (
        'start: r0\nr0: r1 /(\\\\d)*/ "ab" "b" | "ab" "ab" "ab" | /a/{1,3} T1 T1\n'
        'r1: r2 T0 | "ab" "a" | (r0 | "x")* (r2 | "x")* /a/{1,3}\nr2:  | \n'
        "T0: /(b|(.|\\\\d))/ & /a/\nT1: /(((x)*)*)?/ & ~/(\\\\d|(x){0,300})/\n"
    )
    grammars = [
        grammar_of(StructuredOutputsParams(grammar=written)).text,
        grammar_of(StructuredOutputsParams(grammar='root ::= "ab" "ca"')).text,
        grammar_of(
            StructuredOutputsParams(
                structural_tag={
                    "type": "structural_tag",
                    "format": {"type": "grammar", "grammar": 'root ::= "ab" "ca"'},
                }
            )
        ).text,
    ]
    engine = LLGuidanceEngine(VOCABULARY)
    for grammar in grammars:
        matcher = engine.compile(grammar)
        assert matcher.forced(8) == []
    assert engine.compile("start: /abca/").forced(8)
