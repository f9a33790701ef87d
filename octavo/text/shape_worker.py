"""The program of a process that checks shapes: `octavo.text.shape_worker SECONDS BYTES`.

What a client asks for may take any time and memory to compile, so these are the limits of one job.
The server's workers with this duty answer in the same way.
"""

from __future__ import annotations

import sys

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.checked import ShapeJob, check, job_of
from octavo.text.answer_shape import AnswerJob, check_answer
from octavo.text.prompt_worker import Answer, Answers, Job, serve_jobs


def shape_answers() -> Answers:
    """Return what answers the jobs about shapes; check one, which loads all that is needed."""
    checked = check(job_of(StructuredOutputsParams(json_object=True), 0))
    assert not checked.what, checked.what
    return _checked_shape


def _checked_shape(job: Job) -> Answer:
    if isinstance(job, AnswerJob):
        return check_answer(job)
    assert isinstance(job, ShapeJob), "other workers do other jobs"
    return check(job)


if __name__ == "__main__":
    serve_jobs(float(sys.argv[1]), int(sys.argv[2]), shape_answers)
