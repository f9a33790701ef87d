"""The table of layouts in docs/scale.md, made from the cases of tests/ranks/every_layout.py.

`python -m tests.ranks.layouts --write` writes it between two marks of the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- layouts -->\n", "<!-- end of layouts -->\n"
# By what is particular about them.
KINDS: Mapping[str, str] = {
    "dense": "LlamaForCausalLM",
    "experts": "Qwen2MoeForCausalLM",
    "windows": "Gemma2ForCausalLM",
    "MLA, experts": "DeepseekV3ForCausalLM",
    "states": "Lfm2ForCausalLM",
}
_CONTEXTS = {
    "decode_context_parallel_size": 2,
    "prefill_context_parallel_size": 2,
}
_SUMS = {"tensor_parallel_form": "sums", "dtype": "float32"}
# By the flags that ask for them; sums is `--tensor-parallel-form sums`.
LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    "-tp 2": {"tensor_parallel_size": 2},
    "-tp 4": {"tensor_parallel_size": 4},
    "-tp 2 -ep": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "-tp 4 -ep": {"tensor_parallel_size": 4, "enable_expert_parallel": True},
    "-tp 2 -dcp 2 -pcp 2": {"tensor_parallel_size": 2, **_CONTEXTS},
    "-tp 2, sums": {"tensor_parallel_size": 2, **_SUMS},
    "-tp 4, sums": {"tensor_parallel_size": 4, **_SUMS},
    "-tp 2 --nnodes 2, sums": {"tensor_parallel_size": 2, "nnodes": 2, **_SUMS},
    "-pp 2": {"pipeline_parallel_size": 2},
    "-pp 3": {"pipeline_parallel_size": 3},
    "-pp 2 -tp 2": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
    "-pp 2 -tp 2 -ep": {
        "pipeline_parallel_size": 2,
        "tensor_parallel_size": 2,
        "enable_expert_parallel": True,
    },
    "-dp 2": {"data_parallel_size": 2},
}


def is_tested(layout: str, kind: str) -> bool:
    """Return whether a layout has a meaning for a kind of model."""
    return "-ep" not in layout or "experts" in kind


def is_long(layout: str) -> bool:
    """Return whether a layout needs a long sequence, whose positions are divided."""
    return "cp" in layout


def rounds(layout: str) -> bool:
    """Return whether a layout adds up in another order, so that only its text is the same."""
    return "sums" in layout


def cases() -> list[tuple[str, str]]:
    """Return each layout with each kind of model that it is tested with."""
    return [(layout, kind) for layout in LAYOUTS for kind in KINDS if is_tested(layout, kind)]


def _lines() -> Iterator[str]:
    yield f"| layout | {' | '.join(KINDS)} |"
    yield "| --- |" + " --- |" * len(KINDS)
    for layout in LAYOUTS:
        equal = "equal text" if rounds(layout) else "equal"
        found = [equal if is_tested(layout, kind) else "no experts" for kind in KINDS]
        yield f"| `{layout}` | {' | '.join(found)} |"


def with_table(page: str) -> str:
    """Return the page with the table as the tests have it."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    table = "".join(f"{line}\n" for line in _lines())
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    text = with_table(PAGE.read_text())
    if "--write" in sys.argv:
        PAGE.write_text(text)
    elif text != PAGE.read_text():
        sys.exit("docs/scale.md has another table of layouts: run this with --write")
