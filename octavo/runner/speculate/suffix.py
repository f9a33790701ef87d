"""Suffix decoding: proposes what most often followed the same tokens, here or in other answers.

Two texts are searched: the sequence's own, and the answers of earlier requests in the same cache
scope. In each, up to 16 places are followed that were preceded by the tokens which are now the
newest ones, the more the better. At each draft the places vote, and those that had another token
are left. Those that agree, and how often such votes have been right in this sequence, give the
chance of a draft.

Answers are shared only where prefixes are shared too: what others have asked would show in the
time of an answer. What is kept is bounded: scopes, requests and tokens of each.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence

import numpy as np

from octavo.backends.base import Ints
from octavo.core.plan import NewSlot
from octavo.runner.speculate.corpus import NONE, Corpus
from octavo.runner.speculate.proposer import NOTHING, DraftSettings, Proposal, Turn
from octavo.runner.speculate.rates import LEAST_CHANCE, Rates

MOST_SCOPES = 32  # whose answers are kept; the one that was used longest ago is forgotten
MOST_TOKENS = 1 << 17  # of the answers of a scope: with its index, 1.5 MB
_NUM_HASHES = 1 << 16  # of such answers
_MOST_OWN_HASHES = 1 << 14
# The rates that are assumed at first, by the tokens that match; see `Rates`.
FIRST_RATES = (0.0, 0.2, 0.45, 0.55, 0.65, 0.7, 0.75, 0.8, 0.85, *(0.9,) * 6, 0.95)


class Answers:
    """The answers of the earlier requests of one scope, one behind the other.

    `leave` forgets them for good: texts that are still open in a forgotten scope keep no answers.
    """

    __slots__ = ("_lengths", "_most_requests", "corpus", "number")

    def __init__(self, most_requests: int) -> None:
        self._most_requests = most_requests  # 0: none is kept
        self._lengths: deque[int] = deque()  # of each request, the mark behind it included
        self.corpus = Corpus(_NUM_HASHES)
        self.number = 0  # of the times that its places have changed

    def add(self, tokens: Ints) -> None:
        """Add an answer; forget the oldest ones if there are too many."""
        if not self._most_requests:
            return
        tokens = tokens[-MOST_TOKENS // 4 :]
        num_kept = len(self.corpus.tokens) + len(tokens) + 1
        if num_kept > MOST_TOKENS or len(self._lengths) >= self._most_requests:
            self._forget_half()
        self.corpus.extend(np.append(tokens, np.int32(NONE)))
        self._lengths.append(len(tokens) + 1)

    def clear(self, num_hashes: int = _NUM_HASHES) -> None:
        """Forget all answers; their places are followed no more."""
        self._lengths.clear()
        self.corpus = Corpus(num_hashes)
        self.number += 1

    def leave(self) -> None:
        """Forget all answers, and keep no further ones."""
        self.clear(num_hashes=2)
        self._most_requests = 0

    def _forget_half(self) -> None:
        """Forget the older half, so that the index is made anew once in a while only."""
        total, left = sum(self._lengths), sum(self._lengths)
        most = self._most_requests // 2
        while self._lengths and (left > total // 2 or len(self._lengths) > most):
            left -= self._lengths.popleft()
        kept = np.array(self.corpus.tokens[len(self.corpus.tokens) - left :], np.int32)
        self.corpus = Corpus(_NUM_HASHES)
        self.corpus.extend(kept)
        self.number += 1


class Follower:
    """The places of one text that a sequence follows at present."""

    __slots__ = ("_longest", "length", "places", "rates")

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.rates = Rates(FIRST_RATES)
        self.places: list[int] = []
        self.length = 0  # tokens that match before each

    def follow(self, token: int, tokens: array[int]) -> None:
        """Keep the places that had this token, and count whether most did."""
        places = self.places
        if len(places) == 1:
            is_right = tokens[places[0]] == token
            left = [places[0] + 1] if is_right else []
        else:
            left = [place + 1 for place in places if tokens[place] == token]
            is_right = 2 * len(left) >= len(places)
        self.places = left
        self.rates.score(self.length, is_right=is_right)
        self.length += 1

    def find(self, corpus: Corpus, recent: array[int]) -> None:
        """Look for places, where none is left."""
        self.places, self.length = corpus.find(recent, self._longest)

    def draft(self, tokens: array[int], most: int, least: float) -> Proposal:
        """Return what the places have next, as long as it is probable enough."""
        places, length, known = self.places, self.length, len(tokens)
        drafts: list[int] = []
        chances: list[float] = []
        chance = 1.0
        values, longest = self.rates.values, len(self.rates.values) - 1
        while len(places) > 1 and len(drafts) < most:
            nexts = [tokens[at] if at < known else drafts[at - known] for at in places]
            token = nexts[0]  # of the most recent place
            count = nexts.count(token)
            if count < len(nexts):
                token, count = Counter(nexts).most_common(1)[0]
                chance *= count / len(nexts)
                places = [at for at, each in zip(places, nexts, strict=True) if each == token]
            places = [at + 1 for at in places]
            chance *= values[length if length < longest else longest]
            if token == NONE or chance < least:
                return Proposal(drafts, chances)
            drafts.append(token)
            chances.append(chance)
            length += 1
        if len(drafts) < most:
            self._go_on(places[0], length, chance, tokens, (drafts, chances, most, least))
        return Proposal(drafts, chances)

    def _go_on(
        self,
        place: int,
        length: int,
        chance: float,
        tokens: array[int],
        found: tuple[list[int], list[float], int, float],
    ) -> None:
        """Add what one place has next; behind the end of the text, the drafts themselves go on."""
        drafts, chances, most, least = found
        num_known = len(tokens)
        more = self.rates.chances(length, most - len(drafts), least / chance)
        for factor in more:
            token = tokens[place] if place < num_known else drafts[place - num_known]
            if token == NONE:
                return
            drafts.append(token)
            chances.append(chance * factor)
            place += 1


class _Slot:
    """The text of one sequence, and the places that it follows in that and in other answers."""

    def __init__(self, new: NewSlot, answers: Answers, num_hashes: int, longest: int) -> None:
        self.own = Corpus(num_hashes)
        self.answers = answers
        self.number = answers.number
        self.num_shared = len(new.tokens)  # tokens that need not be added to the answers
        self.followers = Follower(longest), Follower(longest)
        self._longest = longest

    @property
    def num_known(self) -> int:
        return len(self.own.tokens) - 1

    def extend(self, new: Ints) -> None:
        """Append tokens: first the whole prompt, later a few at a time."""
        if not self.num_known and len(new):
            self.own.extend(new[:-1])
            new = new[-1:]
        own, other = self.own, self.answers.corpus
        mine, others = self.followers
        if self.number != self.answers.number:
            self.number, others.places = self.answers.number, []
        for token in new.tolist():
            if mine.places:
                mine.follow(token, own.tokens)
            if others.places:
                others.follow(token, other.tokens)
            own.append(token)
        if not mine.places or not others.places:
            num_recent = min(self._longest, self.num_known)
            recent = own.tokens[len(own.tokens) - num_recent :]
            for follower, corpus in ((mine, own), (others, other)):
                if not follower.places and num_recent > 1:
                    follower.find(corpus, recent)


class SuffixProposer:
    """A proposer that needs no model; implements `octavo.runner.speculate.proposer.Proposer`."""

    def __init__(self, settings: DraftSettings, max_model_len: int) -> None:
        self.most = settings.most_tokens
        self._longest = settings.suffix_decoding_max_tree_depth
        self._most_requests = settings.suffix_decoding_max_cached_requests
        self._factor = settings.suffix_decoding_max_spec_factor
        self._least = max(settings.suffix_decoding_min_token_prob, LEAST_CHANCE)
        self._num_hashes = min(_MOST_OWN_HASHES, 1 << max_model_len.bit_length())
        self._slots: dict[int, _Slot] = {}
        self._scopes: OrderedDict[str, Answers] = OrderedDict()

    def open(self, new: NewSlot) -> None:
        scope = new.cache_scope
        answers = self._scopes.get(scope)
        if answers is None:
            answers = self._scopes[scope] = Answers(self._most_requests)
            if len(self._scopes) > MOST_SCOPES:
                self._scopes.popitem(last=False)[1].leave()
        self._scopes.move_to_end(scope)
        self._slots[new.slot] = _Slot(new, answers, self._num_hashes, self._longest)

    def free(self, slot: int) -> None:
        gone = self._slots.pop(slot)
        if gone.num_known > gone.num_shared:
            answer = gone.own.tokens[1 + gone.num_shared :]
            gone.answers.add(np.array(answer, np.int32))

    def forget(self) -> None:
        for answers in self._scopes.values():
            answers.clear()
        for slot in self._slots.values():
            slot.num_shared = max(slot.num_shared, slot.num_known)  # the rest is shared later

    def propose(self, turns: Sequence[Turn]) -> Sequence[Proposal]:
        proposals = []
        for turn in turns:
            slot = self._slots[turn.slot]
            slot.extend(turn.tokens[slot.num_known :])
            proposals.append(self._best(slot, turn.most))
        return proposals

    def _best(self, slot: _Slot, most: int) -> Proposal:
        """Return what the sequence's own text has next, or other answers, if that is likelier."""
        best, highest = NOTHING, 0.0
        corpora = slot.own.tokens, slot.answers.corpus.tokens
        for follower, tokens in zip(slot.followers, corpora, strict=True):
            if follower.places:
                room = min(most, int(self._factor * min(follower.length, self._longest)))
                found = follower.draft(tokens, room, self._least)
                gain = sum(found.chances)
                if gain > highest:
                    best, highest = found, gain
        return best


def make(settings: DraftSettings, max_model_len: int) -> SuffixProposer:
    """Make the proposer that the settings name `suffix`."""
    return SuffixProposer(settings, max_model_len)
