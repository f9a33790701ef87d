"""The grammar engine that llguidance provides: an Earley parser over derivatives of regexes."""

from __future__ import annotations

import json
import logging
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from functools import partial
from threading import Lock
from typing import cast

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from octavo.grammar.json_place import Places, place_in
from octavo.grammar.kept_masks import KeptMasks, MaskKey
from octavo.grammar.messages import error_for
from octavo.grammar.protocol import DRAWN, Forcing, GrammarError, Matcher, Vocabulary, Words

# Bounds on one grammar. A grammar of this size takes some tens of milliseconds to compile.
LIMITS = LLParserLimits(
    max_items_in_row=2_000,  # alternatives at one position
    initial_lexer_fuel=1_000_000,  # about 20 ms
    step_lexer_fuel=200_000,  # about 15 ms for one mask
    step_max_items=50_000,  # about 3 ms for one mask
    max_lexer_states=50_000,  # about 100 MB
    max_grammar_size=500_000,  # symbols
    verbose_errors=False,  # messages must not quote the whole grammar
)
MAX_KEPT = 64  # compiled grammars, for further texts
QUIET = 0  # llguidance writes nothing to standard error


log = logging.getLogger(__name__)


class LLGuidanceEngine:
    """Compiles grammars; implements `octavo.grammar.protocol.GrammarEngine`.

    Texts with equal grammars share what one compilation gave, the states of its lexer with the
    bounds on them included. A text that reaches a bound goes on with a grammar of its own, so that
    it can do all that it could do alone.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, forcing: Forcing = "canonical", num_threads: int = 1
    ) -> None:
        self.end_ids = vocabulary.end_ids
        self.num_words = -(-len(vocabulary.tokens) // 32)
        self.forcing = forcing
        self.tokens = vocabulary.tokens
        self.longest = max(map(len, vocabulary.tokens))
        self.masks = KeptMasks(self.num_words)
        self._tokenizer = make_tokenizer(vocabulary)
        self._header = header(forcing)
        self._lock = Lock()  # for what follows
        self._kept: OrderedDict[str, deque[LLMatcher]] = OrderedDict()
        self._num_threads = num_threads
        self._executor: LLExecutor | None = None

    def compile(self, text: str) -> LLGuidanceMatcher:
        compiled = self._kept_grammar(text)
        if compiled is None:
            compiled = self.compile_alone(text)
            with self._lock:
                self._kept.setdefault(text, deque(maxlen=self._num_threads)).append(compiled)
                if len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
        return LLGuidanceMatcher(self, text, compiled.deep_copy(), lexer=id(compiled))

    def _kept_grammar(self, text: str) -> LLMatcher | None:
        """Return the grammar whose turn it is, if there is one for each thread.

        Threads would wait for each other at one lexer.
        """
        with self._lock:
            kept = self._kept.get(text)
            if kept is None or len(kept) < self._num_threads:
                return None
            self._kept.move_to_end(text)
            kept.rotate()
            return kept[0]

    def fill_all(
        self, rows: Words, work: Sequence[tuple[Matcher, int]]
    ) -> list[BaseException | None]:
        if len(work) == 1:
            ((only, place),) = work
            return [_error_of(only.fill, rows[place])]
        texts = [(cast("LLGuidanceMatcher", matcher), place) for matcher, place in work]
        errors: list[BaseException | None] = [None] * len(texts)
        keys = [matcher.mask_key() for matcher, _ in texts]
        missing: dict[MaskKey | int, int] = {}  # the texts whose masks must be computed
        again: list[int] = []  # texts with the mask of one of those
        for index, (key, (_, place)) in enumerate(zip(keys, texts, strict=True)):
            if key is None:
                missing[index] = index
            elif key in missing:
                again.append(index)
            elif not self.masks.read(key, rows[place]):
                missing[key] = index
        together = [texts[index] for index in missing.values()]
        can_at_once = self._num_threads > 1 and len(together) > 1
        has_all = can_at_once and self._fill_at_once(rows, together)
        for index in missing.values():
            (matcher, place), key = texts[index], keys[index]
            if not has_all or matcher.is_at_bound:
                errors[index] = _error_of(partial(matcher.compute, key), rows[place])
            elif key is not None:
                self.masks.keep(key, rows[place])
        for index in again:
            (matcher, place), key = texts[index], keys[index]
            assert key is not None
            if not self.masks.read(key, rows[place]):  # the one that computes it has failed
                errors[index] = _error_of(partial(matcher.compute, key), rows[place])
        return errors

    def _fill_at_once(self, rows: Words, texts: Sequence[tuple[LLGuidanceMatcher, int]]) -> bool:
        """Compute masks in several threads; return whether the library has not failed as such."""
        # Threads take neighbours, and wait for each other at one lexer.
        ordered = sorted(texts, key=lambda each: each[0].lexer)
        pairs = [(matcher.inner, place) for matcher, place in ordered]
        row_bytes, address = rows.shape[1] * rows.itemsize, _address(rows)
        try:
            if self._executor is None:
                self._executor = LLExecutor(self._num_threads)
            self._executor.unsafe_compute_mask_ptr(pairs, address, row_bytes, len(rows))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic, which the text that caused it meets again by itself
            return False  # or there are no threads: masks are then computed one by one
        return True

    def compile_alone(self, text: str) -> LLMatcher:
        """Return a grammar that shares nothing; raise GrammarError if the text is none."""
        begin = header("off") if DRAWN in text else self._header
        compiled = LLMatcher(self._tokenizer, begin + text, log_level=QUIET, limits=LIMITS)
        if compiled.is_error():
            raise error_for(compiled.get_error())
        return compiled

    def forget(self, text: str | None = None) -> None:
        with self._lock:
            if text is None:
                self._kept.clear()
                self.masks.clear()
            else:
                self._kept.pop(text, None)


class LLGuidanceMatcher:
    """A text in a grammar; implements `octavo.grammar.protocol.Matcher`."""

    __slots__ = (
        "_accepted",
        "_engine",
        "_forcing",
        "_places",
        "_shares",
        "_text",
        "inner",
        "lexer",
    )

    def __init__(
        self, engine: LLGuidanceEngine, text: str, matcher: LLMatcher, *, lexer: int
    ) -> None:
        self._engine = engine
        self._text = text
        self.inner = matcher
        self._accepted = array("i")
        start = place_in(text)
        self._places = None if start is None else Places(start, engine.tokens)
        self._shares = True  # a lexer with other texts
        self._forcing: Forcing = "off" if DRAWN in text else engine.forcing
        self.lexer = lexer  # which one

    def accept(self, tokens: Sequence[int]) -> None:
        taken = list(tokens)
        try:
            self._accept(taken)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:  # a panic of the library is no Exception
            self._do_alone(partial(self._accept, taken), caught)
        self._accepted.extend(taken)

    @property
    def is_at_bound(self) -> bool:
        """True if the library has given up, perhaps because of other texts."""
        return self.inner.is_error()

    def _accept(self, tokens: list[int]) -> None:
        if not self.inner.consume_tokens(tokens):
            raise self._error()

    def _do_alone(self, act: Callable[[], None], caught: BaseException) -> None:
        """Repeat a call that failed, with a grammar of the text's own, if the text shared one.

        Other texts may have reached the bounds that it shared with them.
        """
        if not self._shares:
            raise _of_shape(caught) from None
        self._shares = False
        self._engine.forget(self._text)
        try:
            self.inner = self._engine.compile_alone(self._text)
            if self._accepted:
                self._accept(self._accepted.tolist())
            act()
        except BaseException as again:
            raise _of_shape(again) from None

    def num_accepted(self, tokens: Sequence[int]) -> int:
        try:
            return self.inner.validate_tokens(list(tokens))
        except BaseException as caught:
            raise _of_shape(caught) from None

    def roll_back(self, count: int) -> None:
        if not count:
            return
        del self._accepted[len(self._accepted) - count :]
        if self._places is not None:
            self._places.roll_back(len(self._accepted))
        try:
            is_done = self.inner.rollback(count)
        except BaseException as caught:
            raise _of_shape(caught) from None
        if not is_done:
            raise self._error()

    def forced(self, most: int) -> list[int]:
        if self._forcing == "off":
            return []
        try:
            if self._forcing == "canonical":
                return self.inner.compute_ff_tokens()[:most]
            return self._forced_singly(most)
        except BaseException as caught:
            raise _of_shape(caught) from None

    def _forced_singly(self, most: int) -> list[int]:
        """Return the tokens of which each is the only one that its mask allows."""
        tokens: list[int] = []
        row = np.zeros(self._engine.num_words, np.uint32)
        while len(tokens) < most and self.inner.compute_ff_bytes():
            self.fill(row)
            token = only_bit(row)
            if token is None:
                break
            self.accept([token])
            tokens.append(token)
        self.roll_back(len(tokens))
        return tokens

    def fill(self, row: Words) -> None:
        assert row.dtype == np.uint32
        assert row.flags.c_contiguous
        key = self.mask_key()
        if key is not None and self._engine.masks.read(key, row):
            return
        self.compute(key, row)

    def compute(self, key: MaskKey | None, row: Words) -> None:
        """Write the next mask, which is not kept yet; keep it under its key."""
        try:
            self._fill(row)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:  # a panic of the library is no Exception
            self._do_alone(partial(self._fill, row), caught)
        if key is not None:
            self._engine.masks.keep(key, row)

    def mask_key(self) -> MaskKey | None:
        """Return what determines the next mask, if that is less than the whole text."""
        if self._places is None:
            return None
        key = self._places.behind(self._accepted).key(self._engine.longest)
        return None if key is None else (self._text, *key)

    def _fill(self, row: Words) -> None:
        self.inner.unsafe_compute_mask_ptr(_address(row), row.nbytes)
        if self.inner.is_error():
            raise self._error()

    def copy(self) -> LLGuidanceMatcher:
        made = LLGuidanceMatcher(self._engine, self._text, self.inner.deep_copy(), lexer=self.lexer)
        made._accepted = self._accepted[:]
        made._places = None if self._places is None else self._places.copy()
        return made

    def _error(self) -> GrammarError:
        message = self.inner.get_error()
        return error_for(message or "a token came that the grammar does not allow")


def _of_shape(caught: BaseException) -> BaseException:
    """Return the error of a shape on which the library panics; other errors as they are.

    The state of a text depends on its shape and its tokens alone, so that they are the reason.
    """
    if type(caught).__name__ != "PanicException":
        return caught
    log.warning("the grammar engine failed on a shape: %s", caught)
    return error_for("panic")


def _error_of(write: Callable[[Words], None], row: Words) -> BaseException | None:
    """Write a row; return why that fails."""
    try:
        write(row)
    except BaseException as error:  # a panic of the library is no Exception
        return error
    return None


def _address(words: Words) -> int:
    """Return where an array lies; `words.ctypes` takes twenty times as long."""
    return addressof(c_char.from_buffer(words.data))


def only_bit(row: Words) -> int | None:
    """Return the only token of a mask; None if it has none or several."""
    (words,) = np.nonzero(row)
    if len(words) != 1:
        return None
    word = int(row[words[0]])
    return None if word & (word - 1) else 32 * int(words[0]) + word.bit_length() - 1


class _Tokens:
    """A vocabulary in the form that llguidance reads; see `llguidance.TokenizerWrapper`."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(vocabulary.special)
        self.eos_token_id = min(vocabulary.end_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return list(self._encode(text))


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Return llguidance's view of a vocabulary; raise GrammarError if it has no end token."""
    if not vocabulary.end_ids:
        raise GrammarError(
            "the model has no token that ends a text, so that no text in a shape could end; "
            "name one as eos_token_id in its generation_config.json"
        )
    end_ids = sorted(vocabulary.end_ids)
    tokens = cast("TokenizerWrapper", _Tokens(vocabulary))
    return LLTokenizer(tokens, n_vocab=len(vocabulary.tokens), eos_token=end_ids)


def header(forcing: Forcing) -> str:
    """Return the line of options before every grammar."""
    return f"%llguidance {json.dumps({'no_forcing': forcing != 'canonical'})}\n"
