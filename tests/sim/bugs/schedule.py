"""Bugs in what a step contains: its time, shares, drafts, repetitions, adapters, places."""

from __future__ import annotations

from tests.sim.bugs.core import Bug

TIME_BUGS = (
    Bug(
        "prompts are cut while no sequence decodes",
        "limits.py",
        "        return (num_tokens, num_read) if num_tokens or has_drawn else None\n",
        "        return num_tokens, num_read\n",
    ),
    Bug(
        "each prompt gets the whole room of a step",
        "limits.py",
        "        self._room -= seconds\n",
        "",
    ),
    Bug(
        "the depth of a prompt costs nothing",
        "pace/step_time.py",
        "        return PromptCost(token + pooled if is_pooled else token, pair)\n",
        "        return PromptCost(token, 0.0)\n",
    ),
    Bug(
        "the time of a step is taken for another's",
        "stats.py",
        "self.own_seconds(place)) for",
        "self.own_seconds(1)) for",
    ),
    Bug(
        "a stream whose first token is in flight does not count",
        "limits.py",
        "                has_drawn = True\n",
        "                has_drawn = False\n",
    ),
    Bug(
        "a first token that is late lengthens all steps",
        "limits.py",
        "        if left <= seconds:\n",
        "        if False:\n",
    ),
    Bug(
        "the oldest prompt may be cut to nothing",
        "limits.py",
        "                most = max(most, self._least // self.num_lines, 1)\n",
        "                most = max(most, 0)\n",
    ),
    Bug(
        "a decoding sequence behind a prompt does not count",
        "limits.py",
        "                num_tokens += count\n                num_read += each.num_planned\n",
        "                pass\n",
    ),
    Bug(
        "prompts get the time of the decoding part too",
        "limits.py",
        "self._ratio * self._base) - self._base)",
        "self._ratio * self._base))",
    ),
    Bug(
        "the depth of a prompt is forgotten where it is cut",
        "limits.py",
        "cost.most_tokens(start, count, room)",
        "cost.most_tokens(0, count, room)",
    ),
    Bug(
        "an owner's first chunk counts for all later steps",
        "limits.py",
        "        self._begun, self.num_lines = {}, 1\n",
        "        self.num_lines = 1\n",
    ),
)
SHARE_BUGS = (
    Bug(
        "a share is taken from an owner that holds as much",
        "admission/share.py",
        "self._level(line)) < running.place[:2]",
        "self._level(line)) <= running.place[:2]",
    ),
    Bug(
        "a share ignores the weight",
        "admission/share.py",
        "        return max(line.num_running, worth) / line.weight\n",
        "        return float(max(line.num_running, worth))\n",
    ),
    Bug(
        "a share is not given to a new owner",
        "admission/share.py",
        "            if running[-1].line is not line and self.reason_to_displace",
        "            if False and self.reason_to_displace",
    ),
    Bug(
        "a share is given by the oldest sequence",
        "admission/share.py",
        "        for running in reversed(self._lifecycle.running):\n"
        "            if running.place < first:\n"
        "                break\n",
        "        for running in self._lifecycle.running:\n",
    ),
    Bug(
        "a share of a step is the whole step",
        "admission/share.py",
        "part_of(left * line.weight / weight)",
        "part_of(left)",
    ),
    Bug(
        "a share is not counted again when a sequence leaves",
        "admission/share.py",
        "            if moved or self._num_steps > REFRESH_STEPS:\n",
        "            if self._num_steps > REFRESH_STEPS:\n",
    ),
    Bug(
        "a share is given to the owner with most",
        "admission/share.py",
        "        return (line.rank, self._level(line), line.served, *head.order)\n",
        "        return (line.rank, -self._level(line), line.served, *head.order)\n",
    ),
    Bug(
        "a share's turn ends before its tokens",
        "admission/share.py",
        ">= self._quantum\n",
        ">= 0\n",
    ),
    Bug(
        "a share's turn never ends",
        "admission/share.py",
        ">= self._quantum\n",
        ">= self._quantum * 1000\n",
    ),
    Bug(
        "a share's running sequences are counted twice",
        "lifecycle.py",
        "        sequence.line.num_running -= 1\n",
        "",
    ),
    Bug(
        "an owner that is left alone keeps its part",
        "admission/share.py",
        "line.num_pages, line.allotment, line.room = 0, UNLIMITED, inf",
        "line.num_pages = 0",
    ),
    Bug(
        "background work goes before clients",
        "admission/share.py",
        "        return (line.rank, self._level(line), line.served",
        "        return (-line.rank, self._level(line), line.served",
    ),
)
REPETITION_BUGS = (
    Bug(
        "a repetition begins in the prompt",
        "outcome.py",
        "    first = max(sequence.num_prompt, len",
        "    first = max(0, len",
    ),
    Bug(
        "a repetition among accepted drafts is seen too late",
        "outcome.py",
        "_latest(sequence, tokens[:count], asked)",
        "_latest(sequence, tokens, asked)",
    ),
    Bug(
        "tokens behind a repetition are emitted",
        "outcome.py",
        '            return Outcome(tokens[:count], "repetition")\n',
        '            return Outcome(tokens, "repetition")\n',
    ),
    Bug(
        "a token alone does not end a text that repeats itself",
        "apply.py",
        "                or known + 1 >= sequence.may_end_at\n",
        "                or known + 1 >= sequence.max_total\n",
    ),
    Bug(
        "a repetition ends a text before its min_tokens",
        "outcome.py",
        "            and num_output >= sampling.min_tokens\n            and ends",
        "            and ends",
    ),
    Bug(
        "a repetition of the longest pattern is not seen",
        "stopping/repetition.py",
        "range(asked.min_pattern_size, longest + 1)",
        "range(asked.min_pattern_size, longest)",
    ),
    Bug(
        "a pattern need stand twice only",
        "stopping/repetition.py",
        "output[-size * asked.min_count :]",
        "output[-size * 2 :]",
    ),
    Bug(
        "a repetition is looked for in a pattern's length",
        "outcome.py",
        "- asked.span)",
        "- asked.max_pattern_size)",
    ),
)
STEADY_BUGS = (
    Bug(
        "a steady step appends tokens without looking for repetitions",
        "steady/next_plan.py",
        "            if each.may_end_at < each.max_total:  # any token may, not only these\n"
        "                self.stop_ids = None\n",
        "",
    ),
    Bug(
        "a steady step follows forced tokens",
        "apply.py",
        "            if forced:\n                self._steady.forget()\n",
        "",
    ),
    Bug(
        "a steady step does not notice who has left",
        "steady/next_plan.py",
        "            or self._num_moves != self._lifecycle.num_moves\n",
        "",
    ),
    Bug(
        "a steady step goes on behind the longest length",
        "steady/next_plan.py",
        "each.max_total - each.num_expected)",
        "each.max_total - each.num_expected + 1)",
    ),
    Bug(
        "a steady step's dropped chunk gets a token",
        "plan_draft.py",
        "            self.sequences[index] = None\n            self.stop_ids = None\n",
        "            self.sequences[index] = None\n",
    ),
    Bug(
        "a steady step's table grows too late",
        "steady/next_plan.py",
        "step + self._block_size, [])",
        "step + self._block_size + 1, [])",
    ),
    Bug(
        "a steady step lets those wait who could start",
        "steady/next_plan.py",
        "            or (self._queue.num_ready and (self._free_slots or self._by_priority))\n",
        "",
    ),
    Bug(
        "a steady step ignores that several owners share it",
        "steady/next_plan.py",
        "            or len(self._lines) != 1\n",
        "",
    ),
    Bug(
        "a steady step lets transfers wait",
        "steady/next_plan.py",
        "            or (self._transfers is not None and self._transfers.are_due)\n",
        "",
    ),
)
ADAPTER_BUGS = (
    Bug(
        "an idle adapter's slot is not found again",
        "limits.py",
        "            if lora not in self.slots:\n",
        "            if lora not in self.running:\n",
    ),
    Bug(
        "adapter slots are numbered by those that run",
        "limits.py",
        "            return len(self.slots)\n",
        "            return len(self.running)\n",
    ),
    Bug(
        "a resumed sequence keeps its former adapter slot",
        "limits.py",
        "            sequence.adapter = self.slots[lora]\n",
        "            if sequence.adapter < 0:\n"
        "                sequence.adapter = self.slots[lora]\n",
    ),
    Bug(
        "an adapter is counted for its last sequence only",
        "limits.py",
        "            self.running.setdefault(lora, {})[sequence.request_id] = None\n",
        "            self.running[lora] = {sequence.request_id: None}\n",
    ),
    Bug(
        "the adapter that was used last gives up its slot",
        "limits.py",
        "                self.slots[lora] = self.slots.pop(lora)\n",
        "",
    ),
    Bug(
        "an adapter is awaited where none can run",
        "limits.py",
        "        if request.lora is None or self.num_slots:\n",
        "        if request.lora is None or True:\n",
    ),
)
DRAFT_BUGS = (
    Bug(
        "drafts that were given up are still planned",
        "scheduler.py",
        "                count = min(count, sequence.num_expected - sequence.num_planned)\n",
        "",
    ),
    Bug(
        "drafts that a limiter cut are verified",
        "plan_draft.py",
        "sequence.drafts[: end - expected]",
        "sequence.drafts",
    ),
)
PLACE_BUGS = (
    Bug(
        "a preempted sequence is taken for one that decodes",
        "sequence.py",
        "        self.catching_up = True\n        self.drafts = ()\n",
        "        self.drafts = ()\n",
    ),
    Bug(
        "a sequence preempted for one before it is planned",
        "scheduler.py",
        "            if sequence.slot < 0:\n"
        "                continue  # it was preempted for one before it\n",
        "",
    ),
    Bug(
        "an idle engine does not announce freed slots",
        "engine.py",
        "        return bool(self.scheduler.lifecycle.freed_slots) or self._has_more\n",
        "        return self._has_more\n",
    ),
    Bug(
        "a sequence waits although others have yielded to it",
        "admission/start.py",
        "        return True\n\n    def _has_room",
        "        return not victims\n\n    def _has_room",
    ),
    Bug(
        "a sequence that followed a victim is overtaken by the one that it yielded to",
        "admission/start.py",
        "if len(sequence.line.waiting) != num_waiting:",
        "if len(sequence.line.waiting) < num_waiting:",
    ),
)
SCHEDULE_BUGS = (
    *TIME_BUGS,
    *SHARE_BUGS,
    *REPETITION_BUGS,
    *STEADY_BUGS,
    *ADAPTER_BUGS,
    *DRAFT_BUGS,
    *PLACE_BUGS,
)
