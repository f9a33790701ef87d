"""Bugs in what ranks, stages and sums do, each a change of a text of csrc, or of the group's end.

The worlds of this folder must catch each.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from octavo.core.limits import StageShare
from octavo.engine.ranks.group import ProcessGroup


class NativeBug(NamedTuple):
    """A change of the text of a file below csrc."""

    name: str
    file: str
    before: str
    after: str


RANK_BUGS = (
    NativeBug(
        "a rank takes a step a second time",
        "runtime/ranks.cpp",
        "  seen_ = now;\n",
        "",
    ),
    NativeBug(
        "the first rank waits for one of the others",
        "runtime/ranks.cpp",
        "seen_ * static_cast<uint32_t>(ranks_ - 1) & ~kEnded",
        "seen_ & ~kEnded",
    ),
    NativeBug(
        "a rank that sleeps is not woken for a step",
        "runtime/ranks.cpp",
        "  if (posted.asleep.load() > 0) wake_all(posted.posted, Sleepers::OfAll);\n",
        "",
    ),
    NativeBug(
        "the first rank is not woken when all have finished",
        "runtime/ranks.cpp",
        "  if (posted.waiting.load() > 0) wake_all(posted.finished, Sleepers::OfAll);\n",
        "",
    ),
    NativeBug(
        "a step is announced before it is written",
        "runtime/ranks.cpp",
        "  posted.kind = kind;\n",
        "  seen_ = count_one(posted.posted) & ~kEnded;\n  posted.kind = kind;\n"
        "  const struct Late { Header& at; ~Late() { at.posted.fetch_sub(1); } } late{posted};\n",
    ),
    NativeBug(
        "those that wait for a step do not see the end of the group",
        "runtime/ranks.cpp",
        "  end_word(posted.posted);\n",
        "",
    ),
    NativeBug(
        "the first rank does not see the end of the group",
        "runtime/ranks.cpp",
        "  end_word(posted.finished);\n",
        "",
    ),
    NativeBug(
        "those at a barrier do not see the end of the group",
        "runtime/ranks.cpp",
        "  barrier_.abandon();\n",
        "",
    ),
    NativeBug(
        "the end of the group is seen without a wake",
        "runtime/ranks.cpp",
        "  word.fetch_or(kEnded);\n  wake_all(word, Sleepers::OfAll);\n",
        "  word.fetch_or(kEnded);\n",
    ),
    NativeBug(
        "one that wakes without a reason goes on",
        "runtime/waiting.h",
        "  while (!is_over(now = word.load())) sleep_while(word, now, whose);\n",
        "  if (!is_over(now = word.load())) sleep_while(word, now, whose);\n",
    ),
    NativeBug(
        "a barrier counts anew after it has opened",
        "runtime/barrier.cpp",
        "    gate.arrived.store(0, std::memory_order_relaxed);\n"
        "    if (place.above) pass(*place.above);\n"
        "    // Not a store: it would hide that `abandon` has changed the phase, and with it"
        " `abandoned`.\n"
        "    gate.phase.fetch_add(1);\n",
        "    gate.phase.fetch_add(1);\n    gate.arrived.store(0, std::memory_order_relaxed);\n",
    ),
    NativeBug(
        "a barrier opens before the last has arrived",
        "runtime/barrier.cpp",
        "+ 1 == place.expected)",
        "+ 1 >= place.expected - (place.expected > 2))",
    ),
    NativeBug(
        "a thread at a barrier is not woken",
        "runtime/barrier.cpp",
        "    if (gate.sleepers.load() > 0) wake_all(gate.phase, whose_);\n    return;\n",
        "    return;\n",
    ),
    NativeBug(
        "a step of another width than it was made with is posted",
        "step/posted_step.cpp",
        "  sizes.table_width = step.table_width;\n",
        "  sizes.table_width = step.table_width + (step.sequences > 1);\n",
    ),
)
STAGE_BUGS = (
    NativeBug(
        "a frame that came before is taken again",
        "link/frame_link.cpp",
        "head.number != received_ || ",
        "",
    ),
    NativeBug(
        "a frame of which a part was sent is left so",
        "link/frame_link.cpp",
        "    bytes -= sent;\n",
        "    break;\n",
    ),
    NativeBug(
        "a part of a frame is taken for all of it",
        "link/frame_link.cpp",
        "    bytes -= got;\n",
        "    bytes = 0;\n",
    ),
    NativeBug(
        "a signal ends a connection",
        "link/frame_link.cpp",
        "    if (got < 0 && errno == EINTR) continue;\n",
        "",
    ),
    NativeBug(
        "the end of a connection is waited for as a frame is",
        "link/frame_link.cpp",
        '    if (got == 0) throw Ended("its connection has ended");\n',
        "    if (got == 0) continue;\n",
    ),
    NativeBug(
        "the connections of a group that has ended stay",
        "link/frame_link.cpp",
        "{ ::shutdown(descriptor_, SHUT_RDWR); }",
        "{}",
    ),
    NativeBug(
        "blocks are copied again in each later step",
        "step/further_stages.cpp",
        "  copies_.clear();\n",
        "",
    ),
    NativeBug(
        "blocks are copied behind the step",
        "step/stages.cpp",
        "  for (int32_t at = 0; at < step.sizes.copies; at += 3)\n"
        "    cache.copy_block(step.copies[at], step.copies[at + 1], step.copies[at + 2]);\n",
        "  struct Behind { std::function<void()> work; ~Behind() { work(); } } behind{[&] {\n"
        "  for (int32_t at = 0; at < step.sizes.copies; at += 3)\n"
        "    cache.copy_block(step.copies[at], step.copies[at + 1], step.copies[at + 2]); }};\n",
    ),
    NativeBug(
        "rows are read as if they lay side by side",
        "step/further_stages.cpp",
        "content.data() + row * apart, bytes);",
        "content.data() + row * bytes, bytes);",
    ),
    NativeBug(
        "rows go on with the numbers of another step",
        "step/further_stages.cpp",
        "      Content step = std::move(stage.sent.front());\n      stage.sent.pop_front();\n",
        "      Content step = std::move(stage.sent.back());\n      stage.sent.pop_back();\n",
    ),
    NativeBug(
        "the rows of a later step are taken first",
        "step/further_stages.cpp",
        "    content = std::move(come_.front());\n    come_.pop_front();\n",
        "    content = std::move(come_.back());\n    come_.pop_back();\n",
    ),
    NativeBug(
        "the failure of a stage wakes no thread",
        "step/further_stages.cpp",
        "    if (!is_over_) failure_ = why;\n    is_over_ = true;\n  }\n  announce();\n",
        "    if (!is_over_) failure_ = why;\n    is_over_ = true;\n  }\n",
    ),
    NativeBug(
        "one that carries rows is not woken for a step",
        "step/further_stages.cpp",
        "    stages_[0].sent.push_back(std::move(numbers));\n  }\n  announce();\n",
        "    stages_[0].sent.push_back(std::move(numbers));\n  }\n",
    ),
)
SUM_BUGS = (
    NativeBug(
        "a node sends its parts before all of its ranks have written theirs",
        "nodes/node_sums.cpp",
        "  pass(thread);  // all rows of this node's parts are written\n",
        "",
    ),
    NativeBug(
        "a rank adds up before the parts of other nodes have come",
        "nodes/node_sums.cpp",
        "  pass(thread);  // all parts of the others have come\n",
        "",
    ),
    NativeBug(
        "the first node passes parts on to later nodes alone",
        "nodes/node_sums.cpp",
        "if (other != passed_on) put(",
        "if (other > passed_on) put(",
    ),
    NativeBug(
        "the first node passes its own parts on for those of others",
        "nodes/node_sums.cpp",
        "put(other, node_at(passed_on), turn, floats);",
        "put(other, node_, turn, floats);",
    ),
    NativeBug(
        "of a part of a sum only what is taken at once is sent",
        "link/part_link.cpp",
        "  sent_ += count;\n",
        "  sent_ = out_.size();\n",
    ),
    NativeBug(
        "a signal ends a connection of sums",
        "link/part_link.cpp",
        " || errno == EINTR",
        "",
    ),
    NativeBug(
        "a part of a sum is opened before its tag has come",
        "link/part_link.cpp",
        "if (end_ - begin_ < bytes + kTag) return false;",
        "if (end_ - begin_ < bytes) return false;",
    ),
    NativeBug(
        "the columns of a node are put beside those of another",
        "nodes/further_nodes.cpp",
        "take(link.receive(), node * columns_, in, stride);",
        "take(link.receive(), (node - 1) * columns_, in, stride);",
    ),
    NativeBug(
        "a further node copies no blocks",
        "nodes/following.cpp",
        "  program.copy_block(copy);\n",
        "",
    ),
)
NATIVE_BUGS = (*RANK_BUGS, *STAGE_BUGS, *SUM_BUGS)


def leaves_the_engine(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an engine that does nothing goes on without a rank."""

    def note_end(self: ProcessGroup, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            self._end(reason)

    patch.setattr(ProcessGroup, "note_end", note_end)


def leaves_the_members(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the others wait for the one that has ended."""

    def note_end(self: ProcessGroup, reason: str) -> None:
        if not self.reason:
            self.reason = reason
            self._on_end()

    patch.setattr(ProcessGroup, "note_end", note_end)


def plans_what_is_drawn(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a step has sequences whose next tokens are drawn by another in flight."""
    patch.setattr(StageShare, "clip", lambda self, sequence, count: count)


ENDING_BUGS = (leaves_the_engine, leaves_the_members, plans_what_is_drawn)
