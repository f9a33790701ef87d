"""The predictions of requests in a world, and the drafts that a worker takes from them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import replace

from octavo.core.config import CoreConfig
from octavo.core.plan import StepPlan, StepResult
from octavo.core.request import Request
from tests.sim.drafts.trees import Proposed, check_tree
from tests.sim.kv.memory import require
from tests.sim.truth import VOCABULARY


def with_prediction(seed: int, request: Request, expected: Sequence[int]) -> Request:
    """Return a request with a prediction of its output, which may be right, wrong or neither."""
    rng = random.Random(f"{seed} {request.request_id} prediction")
    kind = rng.choice(("none", "right", "right", "wrong", "departs", "alternates", "long"))
    text = list(expected)
    match kind:
        case "none":
            text = []
        case "wrong":
            text = [(token + 1) % VOCABULARY for token in text]
        case "departs":
            place = rng.randrange(len(text) + 1)
            text[place:] = [(token + 1) % VOCABULARY for token in text[place:]]
        case "alternates":  # the last of the drafts of each step is wrong
            every = rng.randint(2, 6)
            text = [(token + (i % every == 1)) % VOCABULARY for i, token in enumerate(text)]
        case "long":
            text += [rng.randrange(VOCABULARY) for _ in range(200)]
    sampling = request.sampling
    if rng.random() < 0.15:
        sampling = replace(sampling, speculation=False)
    return replace(request, prediction=array("i", text), sampling=sampling)


def may_draft(config: CoreConfig, request: Request) -> bool:
    """Return whether a request may have drafts, as the settings and the request say."""
    has_source = config.proposes or len(request.prediction) > 0
    sampling = request.sampling
    return config.max_drafts > 0 and has_source and sampling.speculation and not sampling.has_state


def predicted_drafts(prediction: Sequence[int], num_output: int, most: int) -> tuple[int, ...]:
    """Return what a prediction has at the place that the output has reached."""
    return tuple(prediction[num_output : num_output + most])


def chances_of(state: int, count: int) -> tuple[float, ...]:
    """Return chances that do not rise, as the text decides."""
    first, kept = 0.3 + state % 7 / 10, 0.6 + state // 7 % 5 / 10
    return tuple(min(1.0, first * kept**place) for place in range(count))


def check_drafts(
    plan: StepPlan,
    config: CoreConfig,
    proposed: dict[int, Proposed],
    in_flight: Sequence[tuple[StepPlan, StepResult]],
    drafting: frozenset[int],
) -> None:
    """Require that a plan verifies what was proposed, and that drafts follow known tokens.

    No draft, and nothing that a second model reads, is behind a sample in flight. Nothing is behind
    drafts in flight: how many of them are accepted is not known. `drafting` has the open slots that
    may draft, before this plan.
    """
    for slot, drafts in plan.drafts:
        check_tree(plan, slot, drafts, proposed.get(slot, Proposed()))
    main = {slot for slot, _ in plan.drafts}
    require(main.issuperset(each.slot for each in plan.branches), f"step {plan.step}: no chain")
    most = config.max_branches
    require(len(plan.branches) <= most, f"step {plan.step}: {len(plan.branches)} branches")
    num_drafts = sum(len(drafts) for _, drafts in plan.drafts) + plan.num_branched
    most = config.max_step_drafts or num_drafts
    require(num_drafts <= most, f"step {plan.step}: {num_drafts} drafts, and room for {most}")
    left = drafting.difference(plan.freed)
    asked = main.union(slot for slot, _ in plan.ahead)
    for before, _ in reversed(in_flight):
        sampled = {
            slot for slot, samples in zip(before.slots, before.samples, strict=True) if samples
        }
        behind = left & sampled & asked
        require(not behind, f"step {plan.step}: slots {behind} have a sample in flight")
        behind = left & {slot for slot, _ in before.drafts} & set(plan.slots)
        require(not behind, f"step {plan.step}: slots {behind} have drafts in flight")
        left = left.difference(before.freed, [new.slot for new in before.opened])
