"""The program of a prompt worker: `octavo.server.worker_program SECONDS BYTES PATH DUTY`.

It answers the jobs of `octavo.text.prompt_worker`, within these limits of one job. With the duty
`bodies` it also reads large bodies of requests, for which it imports the dialects. With `shapes`
it checks the shapes of structured output instead, for which it needs no tokenizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

from octavo.text.prompt_worker import (
    Answers,
    BodyJob,
    PromptMaker,
    ReadBodies,
    ReadBody,
    Refused,
    prompt_answers,
    serve_jobs,
)
from octavo.text.shape_worker import shape_answers

Duty = Literal["prompts", "bodies", "shapes"]


def main() -> None:
    """Answer jobs until the server closes the socket."""
    seconds, num_bytes, path = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    loads: dict[str, Callable[[], Answers]] = {
        "prompts": partial(prompt_answers, path, _refuse_body),
        "bodies": lambda: prompt_answers(path, _body_reader()),
        "shapes": shape_answers,
    }
    serve_jobs(seconds, num_bytes, loads[sys.argv[4]])


def _body_reader() -> ReadBodies:
    """Return the reader of bodies, and import what it needs before a job counts the time."""
    import octavo.server.routes  # noqa: F401 (all dialects)
    from octavo.server.large_bodies import read_body

    return read_body


def _refuse_body(maker: PromptMaker, job: BodyJob) -> ReadBody | Refused:
    raise AssertionError("this worker was not started to read bodies")


if __name__ == "__main__":
    main()
