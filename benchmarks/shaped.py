"""Measure what a shape costs a text, and what forced tokens gain.

    python benchmarks/shaped.py [--model smollm2] [--rounds 5] [--streams 1,32] [--json]

Engines in one process answer in turns, with and without a shape, so that other load on the machine
affects both; the first round, which fills the caches, is not counted. A line has the median of the
rounds' values and their range:

    itl     time of a token in a text with a JSON schema, relative to one without; none is forced
    speed   tokens a second with a schema of 20 fields, relative to a text without a shape
    first   milliseconds that a schema of 10 kB adds to the first token: a new one, a cached one

On a machine that others use too, `--clock processor --threads 1` gives the time that the process
has had a processor for.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from octavo import LLM, SamplingParams, StructuredOutputsParams  # noqa: E402

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
PROMPT = "Describe a person who lives in a small town, with all details, as JSON."
NAMES = "first_name last_name street city country email phone employer title hobby"
NUMBERS = "age height weight children cars"
FLAGS = "is_married is_employed has_pets is_tall is_happy"
TWENTY = {
    f"{name}_of_the_person": kind
    for names, kind in (
        (NAMES, {"type": "string", "maxLength": 12}),
        (NUMBERS, {"type": "integer", "minimum": 0, "maximum": 250}),
        (FLAGS, {"type": "boolean"}),
    )
    for name in names.split()
}
PERSON = {
    "type": "object",
    "properties": TWENTY,
    "required": list(TWENTY),
    "additionalProperties": False,
}
# A text in this shape cannot end early.
ENDLESS = {"type": "array", "minItems": 1000, "items": PERSON}


def large_schema(number: int) -> dict[str, Any]:
    """Return a schema of about 10 kB, another one for each number."""
    properties = {
        f"property_{number}_{index}": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 64},
                "state": {"enum": [f"open {index}", "closed", "unknown"]},
                "count": {"type": "integer", "minimum": 0},
            },
            "required": ["name"],
        }
        for index in range(46)
    }
    return {"type": "object", "properties": properties, "required": list(properties)[:8]}


def timed(llm: LLM, streams: int, clock: Callable[[], float], **values: Any) -> tuple[float, int]:
    """Generate so many texts at once; return the seconds and the number of tokens."""
    sampling = [SamplingParams(temperature=0.8, seed=seed, **values) for seed in range(streams)]
    began = clock()
    outputs = llm.generate([PROMPT] * streams, sampling, use_tqdm=False)
    seconds = clock() - began
    return seconds, sum(len(output.outputs[0].token_ids) for output in outputs)


def measure(rounds: int, once: Callable[[int], float]) -> dict[str, float]:
    """Return the median and the range of a value, without that of the first round."""
    values = [once(number) for number in range(rounds + 1)][1:]
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def shape_of(schema: dict[str, Any]) -> dict[str, Any]:
    shape = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    return {"structured_outputs": shape}


def run(asked: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure everything; return each line by its name."""
    clock = CLOCKS[asked.clock]
    options: dict[str, Any] = {"max_model_len": 2048, "num_threads": asked.threads}
    drawing = LLM(asked.model, forced_tokens="off", **options)
    forcing = LLM(asked.model, forced_tokens="canonical", **options)
    found: dict[str, dict[str, float]] = {}

    def seconds_a_token(llm: LLM, streams: int, **values: Any) -> float:
        seconds, tokens = timed(llm, streams, clock, **values)
        return seconds / tokens

    for streams in asked.streams:

        def itl(number: int, streams: int = streams) -> float:
            plain = {"max_tokens": asked.tokens, "ignore_eos": True}
            ways = [plain, {**plain, **shape_of(ENDLESS)}]
            each = {
                way: seconds_a_token(drawing, streams, **ways[way])
                for way in ((0, 1) if number % 2 else (1, 0))
            }
            return each[1] / each[0]

        def speed(number: int, streams: int = streams) -> float:
            plain = {"max_tokens": asked.tokens, "ignore_eos": True}
            shaped = {"max_tokens": 400, **shape_of(PERSON)}
            ways = [(drawing, plain), (forcing, shaped)]
            each = {}
            for way in (0, 1) if number % 2 else (1, 0):
                llm, values = ways[way]
                each[way] = seconds_a_token(llm, streams, **values)
            return each[0] / each[1]

        found[f"itl, {streams} streams"] = measure(asked.rounds, itl)
        found[f"speed, {streams} streams"] = measure(asked.rounds, speed)

    def first(number: int, kind: str) -> float:
        schema = large_schema(number if kind == "new" else 0)
        plain, _ = timed(forcing, 1, clock, max_tokens=1)
        shaped, _ = timed(forcing, 1, clock, max_tokens=1, **shape_of(schema))
        return 1000 * (shaped - plain)

    found["first, new schema, ms"] = measure(asked.rounds, lambda number: first(number, "new"))
    found["first, cached schema, ms"] = measure(asked.rounds, lambda number: first(number, "old"))
    drawing.close()
    forcing.close()
    return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> int:
    """Measure, and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=_numbers, default=(1, 32))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    found = run(parser.parse_args())
    if "--json" in sys.argv:
        print(json.dumps(found))
        return 0
    for name, value in found.items():
        print(f"{name:28} {value['median']:6.2f}  ({value['least']:.2f} to {value['most']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
