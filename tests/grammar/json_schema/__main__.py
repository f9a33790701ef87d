"""A thousand random schemas: `python -m tests.grammar.json_schema`, or `make test-shapes`."""

from __future__ import annotations

import argparse
import sys

from octavo import LLM
from tests.grammar.json_schema.model_texts import BATCH, try_with_model
from tests.grammar.json_schema.trial import Tally, schemas, try_schema


def main() -> int:
    """Try the schemas; print what is wrong, what was refused, and the numbers.

    The texts are random walks through the grammars, or a model's.
    """
    parser = argparse.ArgumentParser(description="Try random schemas.")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="another number gives other schemas")
    parser.add_argument("--model", help="let this model write a text for each, at temperature 1")
    parser.add_argument("--threads", type=int, help="of the model")
    given = parser.parse_args()
    tally = Tally()
    numbered = enumerate(schemas(given.schemas, given.first), given.first)
    if given.model:
        options = {} if given.threads is None else {"num_threads": given.threads}
        with LLM(given.model, max_num_seqs=BATCH, **options) as llm:
            try_with_model(llm, numbered, tally)
    else:
        for number, schema in numbered:
            try_schema(schema, number, tally)
    for fault in tally.wrong:
        print(fault)
    print(
        f"{tally.num_schemas:,} schemas: {tally.num_empty} that no text has, "
        f"{tally.refused.total()} refused ({tally.share_refused:.1%}); {tally.num_texts:,} texts, "
        f"{len(tally.wrong)} not valid, {tally.num_unfinished} without an end in time"
    )
    for keyword, number in tally.refused.most_common():
        print(f"  refused for {keyword}: {number}")
    return int(bool(tally.wrong) or tally.share_refused > 0.1)


if __name__ == "__main__":
    sys.exit(main())
