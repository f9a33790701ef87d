"""Train a drafter of the EAGLE-3 kind for a model, on text that the model itself writes.

    python benchmarks/train_draft.py DIRECTORY [--model MODEL] [--answers 1600] [--steps 900]

DIRECTORY gets everything, and a run that was stopped goes on from what is there:

    smollm2-bf16/ the model, unless --model names another directory of a Llama
    texts-*.jsonl answers of Octavo with the model, to prompts that are made from templates
    states/       the model's hidden states for these texts
    training      the drafter while it is trained
    settings.json how it was begun; a run with other settings needs another directory
    head/         the drafter, as EAGLE-3 is published

    octavo serve DIRECTORY/smollm2-bf16 --speculative-config '{"model": "DIRECTORY/head"}'

The answers are given by two processes of one thread each; everything else takes --threads. The same
seed gives the same texts, and the same drafter on the same machine. On a machine that others use
too, threads that wait for each other at a spin cost most of the time: set OMP_WAIT_POLICY=passive.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from benchmarks.draft_head.texts import Text, read_texts, write_texts  # noqa: E402

WRITERS = 2  # processes that answer
JUDGED = 16  # of so many texts, one is not trained with


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line of the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--model", type=Path, help="a directory; default: SmolLM2 in bf16")
    parser.add_argument("--answers", type=int, default=1600)
    parser.add_argument("--tokens", type=int, default=224, help="most tokens of an answer")
    parser.add_argument("--vocabulary", type=int, default=4096, help="tokens of the drafter")
    parser.add_argument("--layers", type=_numbers, help="layers whose inputs are read")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--chain", type=int, default=3, help="rows of a chain in training")
    parser.add_argument("--rows", type=int, default=1024, help="rows of a step, about")
    parser.add_argument("--rate", type=float, default=0.004)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args(words)


def write_all_texts(asked: argparse.Namespace, model: Path) -> list[Text]:
    """Write the answers in several processes, and read them."""
    paths = [asked.directory / f"texts-{number}.jsonl" for number in range(WRITERS)]
    sizes = {"answers": asked.answers, "tokens": asked.tokens, "seed": asked.seed}
    context = multiprocessing.get_context("spawn")
    shares = [len(range(asked.answers)[number::WRITERS]) for number in range(WRITERS)]
    writers = [
        context.Process(
            target=write_texts,
            args=(str(model), path),
            kwargs={**sizes, "share": (number, WRITERS)},
        )
        for number, path in enumerate(paths)
        if not path.exists() or sum(1 for _ in read_texts(path)) < shares[number]
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    if any(writer.exitcode for writer in writers):
        raise SystemExit("a process that writes answers has failed; its error is above")
    found: list[Text] = []
    for share, path in zip(shares, paths, strict=True):
        found += islice(read_texts(path), share)
    return [text for text in found if len(text.answer) > 1]


def check_begun(asked: argparse.Namespace) -> None:
    """Keep the settings of a run; refuse to go on with one that was begun with others."""
    path = asked.directory / "settings.json"
    values = {
        name: value if value is None else str(value)
        for name, value in vars(asked).items()
        if name not in ("directory", "threads")
    }
    if not path.exists():
        asked.directory.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=1))
        return
    for name, value in json.loads(path.read_text()).items():
        if values.get(name) != value:
            raise SystemExit(
                f"--{name} is {values.get(name)}, and {asked.directory} was begun with {value}: "
                "give that again, or name another directory"
            )


def usual_layers(model: Any) -> tuple[int, ...]:
    """Return the layers that are read if none are named: those that published drafters read."""
    count: int = model.config.num_hidden_layers
    layers = (2, count // 2, count - 3)
    if not 2 < layers[1] < layers[2]:
        raise SystemExit(f"--layers is needed for a model of {count} layers")
    return layers


def train_head(asked: argparse.Namespace, directory: Path) -> list[float]:
    """Train a drafter as far as that is not done; return the losses of the optimiser's steps."""
    import torch

    from benchmarks.draft_head import files, states, train

    check_begun(asked)
    torch.set_num_threads(asked.threads)
    texts = write_all_texts(asked, directory)
    model = states.open_target(directory)
    layers = asked.layers or usual_layers(model)
    states.write_states(model, texts, asked.directory / "states", layers)
    examples = states.read_states(asked.directory / "states")
    judged = examples[::JUDGED]
    trained = [each for index, each in enumerate(examples) if index % JUDGED]
    own = train.common_tokens(trained, asked.vocabulary, model.config.vocab_size)
    head = files.begin_head(model, layers, own)
    print(
        f"{sum(len(each.tokens) - each.num_prompt for each in trained):,} tokens to train with; "
        f"the drafter has {sum(value.numel() for value in head.parameters()):,} weights",
        flush=True,
    )
    embedding, scores = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    training = train.Training(head, embedding, scores, own)
    settings = train.Settings(asked.steps, asked.chain, asked.rows, asked.rate, asked.seed)
    losses = train.train(training, trained, settings, asked.directory / "training")
    files.write_head(head, own, layers, model, asked.directory / "head")
    for step, (best, common) in enumerate(train.judge(training, judged, asked.chain), 1):
        print(f"draft {step}: right {best:.3f}, in common {common:.3f}, in texts kept apart")
    return losses


def main() -> None:
    """Train a drafter, and say where it is."""
    asked = arguments()
    began = time.monotonic()
    model = asked.model
    if model is None:
        from benchmarks.peers.models import smollm2_bf16

        model = smollm2_bf16(asked.directory, None).directory
    train_head(asked, model)
    print(f"{asked.directory / 'head'}, after {time.monotonic() - began:.0f} s")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
