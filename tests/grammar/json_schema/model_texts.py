"""Texts of a model in the shapes of many schemas, each text judged by the reference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.api.outputs import CompletionOutput
from tests.grammar.json_schema.trial import Tally, compiled, judge

BATCH = 32  # texts at once
MAX_TOKENS = 200
MAX_SHOWN = 400  # characters of a schema in its prompt


def try_with_model(llm: LLM, numbered: Iterator[tuple[int, Any]], tally: Tally) -> None:
    """Write a text for each schema, drawn at temperature 1 with a seed of its own; judge it."""
    while batch := list(islice(numbered, BATCH)):
        prompts, parameters, schemas = [], [], []
        for seed, schema in batch:
            grammar = compiled(schema, tally)
            if grammar is None:
                continue
            text = json.dumps(schema)
            shape = StructuredOutputsParams(json=text)
            prompts.append(f"Some JSON for {text[:MAX_SHOWN]}:\n")
            parameters.append(
                SamplingParams(
                    max_tokens=MAX_TOKENS, seed=seed, structured_outputs=shape, grammar=grammar
                )
            )
            schemas.append(schema)
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        for output, schema in zip(outputs, schemas, strict=True):
            _judge(output.outputs[0], schema, tally)
        print(f"{tally.num_schemas} schemas, {len(tally.wrong)} texts not valid", flush=True)


def _judge(answer: CompletionOutput, schema: Any, tally: Tally) -> None:
    if answer.finish_reason == "length":
        tally.num_unfinished += 1
        return
    tally.num_texts += 1
    if answer.error is not None:
        tally.wrong.append(f"{json.dumps(schema)}: {answer.error}")
    elif (fault := judge(schema, answer.text)) is not None:
        tally.wrong.append(fault)
