"""The training of a drafter: batches, losses, the optimiser, where a stopped run goes on."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.draft_head.head import Head, Rows
from benchmarks.draft_head.progress import Progress
from benchmarks.draft_head.states import Example

STEP_SHARE = 0.8  # of a step's weight in the loss, that of the next one
ROWS_SHOWN = 50  # steps of the optimiser for each line of progress
SAVED = 100  # … for each state that is kept
WARM_UP = 20
NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Settings:
    """The sizes and the rate of a training."""

    steps: int  # of the optimiser
    chain: int  # rows of a chain
    rows: int  # in a batch, about
    rate: float
    seed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of several texts, and what each step of their chains should propose."""

    rows: Rows
    read: Tensor
    tokens: list[Tensor]  # for each step, of each row
    wanted: list[Tensor]  # for each step, the model's states that score what should be proposed
    drawn: list[Tensor]  # … and the token that was drawn from these, or NO_TOKEN behind the text


def common_tokens(examples: Iterable[Example], size: int, vocabulary: int) -> Tensor:
    """Return the commonest tokens of answers, in the order of their ids."""
    if size > vocabulary:
        raise SystemExit(f"--vocabulary {size:,}: the model has {vocabulary:,} tokens")
    counts: Counter[int] = Counter()
    for example in examples:
        counts.update(example.tokens[example.num_prompt :].tolist())
    common = [token for token, _ in counts.most_common(size)]
    left = (token for token in range(vocabulary) if token not in counts)
    while len(common) < size:  # the texts have fewer: the first ids are as good as any
        common.append(next(left))
    return torch.tensor(sorted(common))


def make_batch(examples: Sequence[Example], chain: int) -> Batch:
    """Return the rows of whole texts, of which those of answers are trained."""
    counts = [len(each.tokens) - 1 for each in examples]
    first = [min(each.num_prompt - 1, count) for each, count in zip(examples, counts, strict=True)]
    read = torch.cat([each.read[:-1] for each in examples])
    tokens = [torch.cat([each.tokens[1:] for each in examples])]
    wanted, drawn = [], []
    for step in range(chain):
        states, behind, some = [], [], []
        for example, count, start in zip(examples, counts, first, strict=True):
            places = torch.arange(start, count) + 1 + step
            some.append(example.tokens[places.clamp(max=count)])
            states.append(example.last[places.clamp(max=count)])
            following = example.tokens[(places + 1).clamp(max=count)]
            behind.append(following.masked_fill(places >= count, NO_TOKEN))
        if step:
            tokens.append(torch.cat(some))
        wanted.append(torch.cat(states))
        drawn.append(torch.cat(behind))
    return Batch(Rows(counts, first), read, tokens, wanted, drawn)


class Training:
    """A drafter while it is trained, with the parts of its model that it reads."""

    def __init__(self, head: Head, embedding: Tensor, scores: Tensor, own: Tensor) -> None:
        self.head = head
        self._embedding = embedding
        self._scores = scores[own]  # the part of the model's head for the drafter's tokens
        self.own = own

    def losses(self, batch: Batch) -> tuple[Tensor, list[tuple[float, float]]]:
        """Return the loss of a batch, and of each step two rates of right proposals.

        The first is of the likeliest tokens, the second what the distributions have in common.
        Where a token was drawn that the drafter does not have, nothing is learned.
        """
        embedded = [self._embedding[each] for each in batch.tokens]
        with torch.autocast("cpu", torch.bfloat16):
            found = self.head.chains(batch.read, embedded, batch.rows)
        loss, weight, rates = torch.zeros(()), 1.0, []
        for scores, states, drawn in zip(found, batch.wanted, batch.drawn, strict=True):
            is_own = torch.isin(drawn, self.own)
            guessed = scores[is_own].float().log_softmax(-1)
            with torch.no_grad():
                wanted = (states[is_own] @ self._scores.T).float().softmax(-1)
                common = torch.minimum(wanted, guessed.exp()).sum()
                best = (wanted.argmax(-1) == guessed.argmax(-1)).sum()
            loss = loss - weight * (wanted * guessed).sum() / max(1, int(is_own.sum()))
            weight *= STEP_SHARE
            count = max(1, int((drawn != NO_TOKEN).sum()))
            rates.append((float(best) / count, float(common) / count))
        return loss, rates


class Optimiser:
    """Momentum with orthogonal steps for the matrices of the layer, and Adam for all else."""

    def __init__(self, head: Head, rate: float) -> None:
        self._head, self._rate = head, rate
        self.buffers: dict[str, Tensor] = {}
        for name, value in head.named_parameters():
            self.buffers[f"first.{name}"] = torch.zeros_like(value)
            if not _is_matrix(name, value):
                self.buffers[f"second.{name}"] = torch.zeros_like(value)

    @torch.no_grad()
    def step(self, number: int, share: float) -> None:
        """Change the drafter by its gradients; `share` is the part of the full rate."""
        rate = self._rate * share
        for name, value in self._head.named_parameters():
            grad, first = value.grad, self.buffers[f"first.{name}"]
            assert grad is not None
            if _is_matrix(name, value):
                first.lerp_(grad, 0.05)
                step = _orthogonal(grad.lerp(first, 0.95))
                value.sub_(step, alpha=rate * 0.2 * max(value.shape) ** 0.5)
                continue
            second = self.buffers[f"second.{name}"]
            first.lerp_(grad, 0.1)
            second.lerp_(grad.square(), 0.01)
            scale = (second / (1 - 0.99**number)).sqrt() + 1e-10
            own_rate = rate if value.ndim == 1 else 0.2 * rate
            value.addcdiv_(first / (1 - 0.9**number), scale, value=-own_rate)
        self._head.zero_grad()


def _is_matrix(name: str, value: Tensor) -> bool:
    return value.ndim == 2 and not name.startswith("lm_head")


def _orthogonal(x: Tensor) -> Tensor:
    """Return about the nearest matrix whose singular values are one, by five steps of Newton's."""
    is_tall = x.shape[0] > x.shape[1]
    y = (x.T if is_tall else x).bfloat16()
    y = y / (y.norm() + 1e-20)
    for _ in range(5):
        square = y @ y.T
        y = 3.4445 * y + (-4.775 * square + 2.0315 * square @ square) @ y
    return (y.T if is_tall else y).float()


def batches(examples: Sequence[Example], settings: Settings) -> Iterator[list[Example]]:
    """Return endless batches of whole texts, all texts once before any comes again."""
    if not examples:
        raise SystemExit("--answers: there are no texts to train with; raise it")
    generator = random.Random(settings.seed)
    batch: list[Example] = []
    num_rows = 0
    while True:
        for example in generator.sample(examples, len(examples)):
            num_own = len(example.tokens) - example.num_prompt
            if batch and num_rows + num_own > settings.rows:
                yield batch
                batch, num_rows = [], 0
            batch.append(example)
            num_rows += num_own


def share_of_rate(step: int, steps: int) -> float:
    """Return the part of the full rate: it rises at first, and falls to nothing at the end."""
    return min(1.0, (step + 1) / WARM_UP, 1.25 * (1 - step / steps))


def train(
    training: Training, examples: Sequence[Example], settings: Settings, kept: Path
) -> list[float]:
    """Train a drafter, from the last state that was kept; return the losses."""
    optimiser = Optimiser(training.head, settings.rate)
    done, losses = _resume(kept, training.head, optimiser), []
    progress = Progress("steps", settings.steps, done)
    for number, batch in enumerate(batches(examples, settings)):
        if number >= settings.steps:
            break
        if number < done:
            continue
        loss, rates = training.losses(make_batch(batch, settings.chain))
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step(number + 1, share_of_rate(number, settings.steps))
        losses.append(loss.item())
        if (number + 1) % ROWS_SHOWN == 0:
            last = losses[-ROWS_SHOWN:]
            shown = ", ".join(f"{best:.2f}/{common:.2f}" for best, common in rates)
            progress.show(number + 1, f"loss {sum(last) / len(last):.3f}, right {shown}")
        if (number + 1) % SAVED == 0 or number + 1 == settings.steps:
            _keep(kept, number + 1, training.head, optimiser)
    return losses


@torch.no_grad()
def judge(training: Training, examples: Sequence[Example], chain: int) -> list[tuple[float, float]]:
    """Return the rates of right proposals in texts that were not trained with."""
    found, total = [[0.0, 0.0] for _ in range(chain)], 0
    for example in examples:
        weight = len(example.tokens) - example.num_prompt
        _, rates = training.losses(make_batch([example], chain))
        total += weight
        for sums, each in zip(found, rates, strict=True):
            sums[0] += weight * each[0]
            sums[1] += weight * each[1]
    return [(best / total, common / total) for best, common in found]


def _keep(kept: Path, step: int, head: Head, optimiser: Optimiser) -> None:
    state = {f"head.{name}": value for name, value in head.state_dict().items()}
    made = kept.with_suffix(".part")
    save_file(state | optimiser.buffers, made, metadata={"step": json.dumps(step)})
    made.rename(kept)


def _resume(kept: Path, head: Head, optimiser: Optimiser) -> int:
    """Take the state that was kept, if there is one; return the steps that it has done."""
    from safetensors import safe_open

    if not kept.exists():
        return 0
    with safe_open(kept, "pt") as file:
        step: int = json.loads(file.metadata()["step"])
    tensors = load_file(kept)
    head.load_state_dict({name: tensors[f"head.{name}"] for name in head.state_dict()})
    for name, value in optimiser.buffers.items():
        value.copy_(tensors[name])
    return step
