"""Measure what a draft model gains, by how often it is right.

    python benchmarks/draft_model.py DIRECTORY --make-1b [--layers 1] [--share 0.1] [--streams 1,4]
    python benchmarks/draft_model.py MODEL --drafter SMALLER

With --make-1b, the model is the shape of a 1B Llama in bf16 with random weights (with --make-small,
one of half the width, a quarter of the size), and the drafter its own first layers with the same
embedding and head. What the other layers add is scaled by --share: the less that is, the more often
both draw the same token. So the rate of right drafts is made, and only the time is measured.

One engine has both models. It answers with and without drafts in turns, so that other load on the
machine affects both; a ratio is one round's time without by its time with. The answers must be
equal. The drafter reads the prompts before the time that is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from octavo import LLM, SamplingParams  # noqa: E402
from octavo.observe.machine import processor  # noqa: E402

NUM_PROMPT = 100
SMALL = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}


def scale_layers(model: Path, first: int, share: float) -> Path:
    """Write a model of which the layers from the first on add so small a part of what they did."""
    from safetensors.numpy import load_file, save_file

    made = model / f"share-{share:g}-from-{first}"
    if (made / "config.json").exists():
        return made
    made.mkdir(exist_ok=True)
    tensors = load_file(model / "model.safetensors")
    for name, tensor in tensors.items():
        _, _, inner = name.partition(".layers.")
        if (
            inner
            and int(inner.partition(".")[0]) >= first
            and ("o_proj" in inner or "down" in inner)
        ):
            tensors[name] = (tensor.astype("float32") * share).astype(tensor.dtype)
    save_file(tensors, made / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (made / name).write_bytes((model / name).read_bytes())
    return made


def make_drafter(model: Path, layers: int) -> Path:
    """Write a model of the first layers of another one."""
    from safetensors import safe_open
    from safetensors.numpy import save_file

    made = model / f"first-{layers}"
    if (made / "config.json").exists():
        return made
    made.mkdir(exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    kept = {}
    with safe_open(model / "model.safetensors", "numpy") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            parts = name.split(".")
            if "layers" not in parts or int(parts[parts.index("layers") + 1]) < layers:
                kept[name] = file.get_tensor(name)
    save_file(kept, made / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (made / name).write_bytes((model / name).read_bytes())
    (made / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return made


def timed(llm: LLM, streams: int, sampling: SamplingParams) -> tuple[list[Any], float, list[Any]]:
    """Answer prompts together; return the tokens, the seconds of decoding, and the statistics."""
    prompts = [
        {"prompt_token_ids": [5 + (index * 7 + stream) % 251 for index in range(NUM_PROMPT)]}
        for stream in range(streams)
    ]
    outputs = llm.generate(prompts, [sampling] * streams, use_tqdm=False)
    stats = [each.metrics for each in outputs]
    began = max(each.first_token_at for each in stats)  # type: ignore[union-attr, type-var]
    ended = max(each.finished_at for each in stats)  # type: ignore[union-attr, type-var]
    tokens = [list(each.outputs[0].token_ids) for each in outputs]
    return tokens, ended - began, stats  # type: ignore[operator]


def compare(llm: LLM, streams: int, rounds: int, drafting: SamplingParams) -> dict[str, Any]:
    """Compare answers with and without drafts."""
    plain = replace(drafting, speculation=False)
    expected, _, _ = timed(llm, streams, plain)
    timed(llm, streams, drafting)
    ratios, rates = [], []
    steps = drafts = accepted = 0
    for number in range(rounds):
        order = (plain, drafting) if number % 2 else (drafting, plain)
        seconds = {}
        for each in order:
            tokens, seconds[each.speculation], stats = timed(llm, streams, each)
            if tokens != expected:
                raise SystemExit("the answers differ")
            if each.speculation:
                steps += sum(one.num_decode_steps for one in stats)
                drafts += sum(one.num_drafts for one in stats)
                accepted += sum(one.num_accepted_drafts for one in stats)
        ratios.append(seconds[False] / seconds[True])
        rates.append(sum(map(len, expected)) / seconds[True])
    return {
        "streams": streams,
        "temperature": drafting.temperature,
        "ratio": statistics.median(ratios),
        "range": (min(ratios), max(ratios)),
        "tokens_a_second": statistics.median(rates),
        "tokens_a_step": 1 + accepted / max(1, steps),
        "drafts": drafts,
        "accepted": accepted,
    }


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--make-1b", action="store_true", help="write the model there, if need be")
    parser.add_argument("--make-small", action="store_true", help="write one of a quarter of that")
    parser.add_argument("--drafter", help="default: the first layers of the model")
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--candidates", type=int, default=1, help="for each place of a tree")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--streams", default=[1], type=_numbers(int))
    parser.add_argument("--temperatures", default=[1.0, 0.1, 0.02], type=_numbers(float))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.make_1b or asked.make_small:
        from benchmarks.peers.models import make_random_1b

        make_random_1b(Path(asked.model), **({} if asked.make_1b else SMALL))
        asked.model = str(scale_layers(Path(asked.model), asked.layers, asked.share))
    drafter = asked.drafter or str(make_drafter(Path(asked.model), asked.layers))
    sampling = SamplingParams(seed=1, max_tokens=asked.tokens, ignore_eos=True, detokenize=False)
    options: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": max(asked.streams)}
    config = {
        "model": drafter,
        "num_speculative_tokens": asked.drafts,
        "draft_candidates": asked.candidates,
    }
    with LLM(asked.model, num_threads=asked.threads, speculative_config=config, **options) as llm:
        results = [
            compare(llm, streams, asked.rounds, replace(sampling, temperature=temperature))
            for streams in asked.streams
            for temperature in asked.temperatures
        ]
    name, _ = processor()
    if asked.json:
        print(json.dumps({"processor": name, "model": asked.model, "results": results}, indent=1))
        return
    print(f"{asked.model} with {drafter} on {name}, {asked.rounds} rounds of {asked.tokens} tokens")
    for result in results:
        low, high = result["range"]
        print(
            "{streams} streams, temperature {temperature}: {ratio:.2f} times as fast".format(
                **result
            )
            + f" ({low:.2f} to {high:.2f}); "
            "{tokens_a_second:.1f} tokens/s, {tokens_a_step:.2f} a step, {drafts} drafts, "
            "{accepted} accepted".format(**result)
        )


def _numbers(kind: type) -> Any:
    return lambda text: [kind(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
