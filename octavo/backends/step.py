"""One step as data: the batch of its forward pass, its draws, and its output.

A step is everything between a plan and its tokens: slots are freed and opened, blocks are copied,
one forward pass runs, and tokens are drawn. `Backend.step` takes it and returns a `Pending`. Steps
run strictly in the order of their submission. Logits stay with the backend, and so do the slots'
arrays: the last token, the output tokens, counts for penalties, sums of pooled vectors.

A slot's tokens are drawn from its row of raw logits in this order:

    log-probabilities, if wanted, of the raw logits
    rules: allowed ids, bad words, min_tokens, bias, processors, penalties, DRY, mask
    temperature, then min-p, top-k and top-p; or a chain of samplers instead of these
    noise of (seed, output position, token); the token with the largest sum is drawn

After each accepted draft its row is drawn from. A draft is accepted if it equals the token that was
drawn from the row that it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from octavo.backends.base import Floats, Ints
from octavo.layers import Value

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

NO_ADAPTER = -1  # in HostBatch.adapters: the row is computed without one
LAST_SAMPLE = -1  # in HostBatch.token_ids: the last known token of the row's slot
NO_LOGPROBS = -2  # in `logprobs`: none are wanted
ALL_LOGPROBS = -1  # in `logprobs`: those of the whole vocabulary

NO_ROWS = np.zeros(0, np.int32)
Copies = tuple[tuple[int, int, int], ...]

NOT_FINITE = (
    "the model gave logits that are not finite (NaN or infinity) for this sequence; "
    "the weights may be damaged, or overflow in this precision"
)
NO_TOKEN_LEFT = (
    "no token is left to choose: the shape, allowed_token_ids, bad_words, min_tokens and the "
    "logits processors together forbid all of them"
)

# (prompt ids, output ids, logits) → logits; `call_processor` checks what it returns.
Processor = Callable[[Any, Any, Any], Any]


class HostBatch(NamedTuple):
    """The input of one forward pass on the host; sequence s has rows row_starts[s:s+2].

    All integers are int32. The arrays belong to the backend until the step has been collected; the
    caller may pass the same arrays again in later steps, and changes them only after that.

    Where `continues` is not None, the batch is that of the step before, with its adapters, each
    position one further, LAST_SAMPLE for all tokens, and more blocks in the tables. Each sequence
    had one row there, and drew a token. All other fields but `copies`, `saves` and `loads` are
    empty then, and of the draws, slots and first rows are those of that step. Only a backend that
    `can_continue` gets such a batch.
    """

    token_ids: Ints  # [rows]; LAST_SAMPLE where only the backend may know the token yet
    positions: Ints  # [rows]
    row_starts: Ints  # [sequences + 1]
    tables: tuple[Ints, ...]  # for each group [sequences, blocks], padded with the null block
    logits_rows: Ints  # rows whose logits are wanted: first those of draws, then of prompts
    hidden_rows: Ints = NO_ROWS  # rows whose last hidden state is wanted
    slots: Ints = NO_ROWS  # [sequences]; needed where a token is LAST_SAMPLE
    # Blocks to copy in this order (source, destination, group) before anything is written.
    copies: Copies = ()
    types: Ints = NO_ROWS  # [rows]: which text of a pair each belongs to; empty: the first
    # (sequence, index of the first new entry in its tables, new blocks for each group)
    continues: tuple[tuple[int, int, tuple[tuple[int, ...], ...]], ...] | None = None
    # (block, group) of blocks to return in `StepOutput.saved`, as they are before the copies.
    saves: tuple[tuple[int, int], ...] = ()
    # (block, group, content) of blocks to overwrite with what was saved, after the copies.
    loads: tuple[tuple[int, int, Bytes], ...] = ()
    adapters: Ints = NO_ROWS  # [rows]: the slot of each row's adapter, or NO_ADAPTER; empty: none
    # (slot, what `Backend.adapter` returned, factor) to put in place before any row is computed,
    # after the steps before; None empties the slot. A row's adapter adds `factor` times its pairs.
    adapter_slots: tuple[tuple[int, Value | None, float], ...] = ()
    # [3 · echoes]: first row, rows, sequence. What these rows keep at their positions is kept in
    # that sequence's tables too: those of their own hold the same positions, and other blocks.
    echoes: Ints = NO_ROWS


class NoAdaptersError(ValueError):
    """A use of adapters with a backend that computes none."""


NO_ADAPTERS = "this backend computes no adapters (LoRA)"


def refuse_adapters(batch: HostBatch) -> None:
    """Raise NoAdaptersError if a batch has adapters: this backend computes none."""
    if batch.adapter_slots:
        raise NoAdaptersError(f"a step changes slots of adapters, and {NO_ADAPTERS}")
    if len(batch.adapters) and batch.adapters.max() != NO_ADAPTER:
        slots = sorted({*batch.adapters.tolist()} - {NO_ADAPTER})
        raise NoAdaptersError(
            f"a step has rows with the adapters in slots {slots}, and this backend computes none; "
            "a request with an adapter must be refused before"
        )


def batch_of_copies(copies: Copies) -> HostBatch:
    """Make a batch without rows, which only copies blocks."""
    return HostBatch(NO_ROWS, NO_ROWS, np.zeros(1, np.int32), (), NO_ROWS, copies=copies)


def _none() -> Ints:
    return NO_ROWS


def _no_bias() -> Floats:
    return np.zeros(0, np.float32)


class Stage(NamedTuple):
    """One sampler of a chain, which works on what the ones before have left."""

    name: str  # as in SamplerOptions.samplers, or "mirostat", which is the last
    # What the name says; of "temperature" 0: the most likely token; of "mirostat" its version.
    value: float
    min_keep: int = 0  # tokens that are left at least
    threshold: float = 0.0  # of "xtc"
    range: float = 0.0  # of "temperature", which follows the entropy then
    exponent: float = 1.0  # … to whose power it is raised


class Dry(NamedTuple):
    """The penalties for tokens that would continue a repetition."""

    multiplier: float
    base: float
    allowed: int  # tokens; shorter repetitions have no penalty
    window: int  # the last tokens, which are looked at
    breakers: tuple[int, ...] = ()  # tokens over which no repetition reaches


class Mirostat(NamedTuple):
    """The parameters of the stage "mirostat", and its state, which each token changes.

    A token is drawn among those whose surprise is at most `mu`, which then moves by `eta` times
    what the surprise of that token, among those, was above or below `tau`.
    """

    tau: float  # in bits, as all surprises
    eta: float
    mu: float  # behind the known tokens


class SlotSampling(Struct, frozen=True, eq=False):
    """The way in which a slot's tokens are drawn; fixed while the slot is open.

    All ids are in the vocabulary.
    """

    tokens: Ints  # known at opening: the prompt, then the output
    num_prompt: int
    temperature: float = 0.0  # 0: greedy
    min_p: float = 0.0  # 0: off
    top_p: float = 1.0  # 1: off
    top_k: int = 0  # 0: off
    # Instead of temperature and filters, which are then 1 and off.
    chain: tuple[Stage, ...] = ()
    seed: int = 0
    allowed: Ints | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_ids: Ints = field(default_factory=_none)  # not drawn before min_tokens
    bias_ids: Ints = field(default_factory=_none)  # ascending, each once
    bias: Floats = field(default_factory=_no_bias)
    repetition: float = 1.0  # 1: off; for tokens of prompt and output
    presence: float = 0.0  # for tokens of the output
    frequency: float = 0.0  # … for each occurrence
    penalty_window: int = 0  # the last tokens, whose occurrences count; 0: all
    dry: Dry | None = None
    mirostat: Mirostat | None = None  # if it is the last stage of the chain
    logprobs: int = NO_LOGPROBS  # of drawn tokens: how many of the most likely; ALL_LOGPROBS
    logprob_ids: Ints = field(default_factory=_none)  # those of these tokens instead
    processors: tuple[Processor, ...] = ()

    @property
    def has_penalties(self) -> bool:
        return bool(self.presence or self.frequency or self.repetition != 1.0)

    @property
    def has_rules(self) -> bool:
        """True if its rows change before temperature and filters (masks apart)."""
        return bool(
            self.allowed is not None
            or self.bad_words
            or self.min_tokens
            or len(self.bias_ids)
            or self.processors
            or self.has_penalties
            or self.dry is not None
        )

    @property
    def has_filters(self) -> bool:
        return bool(self.min_p > 0 or self.top_p < 1 or self.top_k > 0 or self.chain)


class PromptRows(NamedTuple):
    """Rows of the logits that predict a prompt's tokens, whose log-probabilities are wanted."""

    slot: int
    first_row: int  # of the logits; one row for each target
    targets: Ints
    num_logprobs: int  # of the most likely tokens at each position; ALL_LOGPROBS: every one


class PoolRows(NamedTuple):
    """Hidden rows to add to a slot's pooled vector, which is their mean.

    The sum is of float64, position by position. It starts anew when the slot is opened. Rows
    `apart` are not added: each is returned as it is.
    """

    slot: int
    first_row: int  # of the hidden rows
    num_rows: int
    is_last: bool  # whether the vector is complete with them, and returned
    apart: bool = False


class Masks:
    """The tokens that may be drawn, in packed bits that may still be computed meanwhile.

    Bit t % 32 of word t // 32 is token t. There is a row for each row of the samples, in their
    order: [samples + drafts, words].
    """

    def __init__(self, rows: Words) -> None:
        self.rows = rows
        self._is_ready = False
        self._gate = Lock()  # held until the rows are complete
        self._gate.acquire()
        self._lock = Lock()
        self._waiting: list[Callable[[Words], None]] = []

    def set_ready(self) -> Masks:
        """Mark the rows as complete, and call what waits for them; return these masks."""
        with self._lock:
            assert not self._is_ready, "the rows are complete already"
            self._is_ready = True
            waiting, self._waiting = self._waiting, []
        self._gate.release()
        for call in waiting:
            call(self.rows)
        return self

    def when_ready(self, call: Callable[[Words], None]) -> None:
        """Call with the rows as soon as they are complete, in whichever thread that is."""
        with self._lock:
            if not self._is_ready:
                self._waiting.append(call)
                return
        call(self.rows)

    def wait(self) -> Words:
        """Wait until the rows are complete, and return them."""
        with self._gate:
            return self.rows


class Ahead(NamedTuple):
    """The part of a further program (`Backend.add_program`) in a step, behind its draws.

    First it computes the known tokens that it lacks; and of each sample for which it proposes
    tokens, what is new: accepted drafts that it has not computed, and the token that was drawn
    last. From the last row it draws the first proposal, and each later one from a row of the one
    before. The row of the last proposal is not computed.

    A program with a block (`Model.draft_block`) proposes all of them in one pass instead. Its rows
    are the token that was drawn last, and masks behind it, each of which proposes the token in
    its place. It lacks nothing, and computes all rows of the block in any case: the tables have
    blocks for these.

    It draws as the slot would, by its rules and its noise, without a mask: a program with the
    weights of the first one is never wrong. The tables have blocks for all these positions, and
    hold its rows of all positions before them.
    """

    owner: str
    num_steps: Ints  # [samples]: the tokens to propose; 0: none
    # [samples]: leading drafts whose rows it has computed in the tables; as many as the sample has:
    # all accepted ones have theirs, in whatever branch.
    num_written: Ints
    # Known tokens that it lacks, with their positions; of sequence s row_starts[s:s+2].
    token_ids: Ints
    positions: Ints
    row_starts: Ints  # [sequences + 1]
    # [samples]: candidates for each proposed token; empty: one. Each is what is drawn where those
    # before it are forbidden; the next token follows the first.
    widths: Ints = NO_ROWS


class Draws(NamedTuple):
    """The part of a step besides the forward pass and its copies.

    Slots are freed, then opened, before the batch is computed. The logits rows of a sample are
    `first_rows[i]` and the `num_drafts[i]` rows that follow; samples come in the order of rows.
    """

    freed: tuple[int, ...]
    opened: tuple[tuple[int, SlotSampling], ...]
    slots: Ints  # [samples]: each slot once
    first_rows: Ints  # [samples]: the logits row of the last known token
    num_drafts: Ints | None = None  # [samples]; None: no drafts in this step
    drafts: Ints = NO_ROWS  # of all samples, one sample after the other
    prompts: tuple[PromptRows, ...] = ()
    pools: tuple[PoolRows, ...] = ()
    masks: Masks | None = None  # None: every token may be drawn
    # (slot, tokens) that follow what was drawn for a slot before; applied before the forward pass,
    # after `freed` and `opened`.
    appended: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ahead: Ahead | None = None  # what a further program computes and proposes
    # [drafts]: of each, the row of its sample that it follows, 0 being the first; an earlier one.
    # Empty: each follows the one before. Where the last accepted draft is a row of another sequence
    # of the batch than the sample's first, all blocks in which their tables differ, up to its
    # position, are copied to those of the first row's sequence, behind the draws.
    parents: Ints = NO_ROWS


class RowLogprobs(NamedTuple):
    """Log-probabilities of some tokens for a few rows of one slot.

    The first column is the drawn (or actual) token; the most likely ones follow, best first, ties
    by token id. They are those of the raw logits, and finite: at least the least float32.
    """

    slot: int
    token_ids: Ints  # [rows, 1 + count]
    logprobs: Floats  # [rows, 1 + count]
    ranks: Ints  # [rows]: of the first column: one more than the number of likelier tokens


class StepOutput(NamedTuple):
    """The result of a step; its arrays, but those of `saved`, are valid until the next `collect`.

    A failure is one of its slot alone: a row without finite logits, no token left, a processor's
    error. A failed sample draws no more in this step. The last of its tokens stands for the draw
    that failed, and means nothing; those before it are drafts that were accepted, and have their
    log-probabilities. One of them may have ended the text: a backend does not know the end, so the
    failed row may lie behind it. Later tokens of the slot mean nothing.
    """

    tokens: tuple[tuple[int, ...], ...]  # of each sample: accepted drafts, then one more
    failures: tuple[tuple[int, str], ...] = ()  # (slot, message), of this step
    logprobs: tuple[RowLogprobs, ...] = ()  # slots that want them: a row for each token drawn
    prompts: tuple[RowLogprobs, ...] = ()  # for each of draws.prompts that did not fail
    # (slot, vector) for each that is complete; of rows apart, all vectors one after the other
    pooled: tuple[tuple[int, Floats], ...] = ()
    # Of each sample, where `Draws.ahead` asks for them: for each place as many candidates as its
    # width, -1 where there are fewer. Fewer places where a draw fails, and none for a sample that
    # failed, or has processors.
    proposals: tuple[tuple[int, ...], ...] = ()
    saved: tuple[Bytes, ...] = ()  # the content of each of the batch's saves
    ahead_seconds: float = 0.0  # that the further program has taken
    # (slot, mu behind the token that was drawn), of slots with mirostat, which have no drafts; of a
    # slot that failed it means nothing
    states: tuple[tuple[int, float], ...] = ()


class Pending(Protocol):
    """A step that was submitted."""

    def done(self) -> bool:
        """Return whether `collect` would return (or raise) without waiting; begin nothing.

        A backend may leave a step alone until it is collected or another is submitted.
        """

    def collect(self) -> StepOutput:
        """Wait for the step and return its output, or raise what the step raised.

        Steps are collected in order, each once.
        """
