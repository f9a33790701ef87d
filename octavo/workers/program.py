"""The program of a worker: `octavo.workers.program SECONDS BYTES DUTY [PATH [READER]]`.

It answers the jobs that come over its standard input, which is a socket, one at a time, each within
these limits; the server ends a job that takes too long. The first frame says that the worker is
ready, or why it will never be. For prompts it reads the tokenizer at PATH. With the duty `bodies`
it also reads large bodies of requests, by what the function READER (`module:name`) returns. With
`shapes` it checks the shapes of structured output instead, for which it needs no tokenizer.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from octavo.confine.worker import confine_worker, limit_memory
from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.grammar.checked import ShapeJob, check, job_of
from octavo.named_object import find_object
from octavo.observe.collection import freeze, no_collection
from octavo.observe.machine import give_back_freed
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import valid_text
from octavo.text.tokenizer_files import load_tokenizer_at
from octavo.workers.answer_shape import AnswerJob, check_answer
from octavo.workers.frames import encode, read_frame, write_frame
from octavo.workers.jobs import (
    Answer,
    BodyJob,
    Job,
    PreparedPrompts,
    PromptJobs,
    ReadBody,
    Ready,
    Refused,
    TableJob,
)
from octavo.workers.prompts import MAX_MESSAGE_CHARACTERS, PromptMaker

LOAD_BYTES = 4 << 30  # of reading the tokenizer
LOAD_SECONDS = 60.0  # for it
LARGE_FRAME_BYTES = 1 << 18  # larger jobs leave memory behind that is worth returning
# Modules that templates and tools make Python import; a confined process can import nothing more.
_IMPORTED_LATE = (
    "encodings.unicode_escape",
    "encodings.utf_16_le",
    "html",
    "jinja2.debug",
    "octavo.text.chat.tools_as_text",
    "textwrap",
)

# The server's way to read a large body.
ReadBodies = Callable[[PromptMaker, BodyJob], ReadBody | Refused]
# The function that answers the jobs of one worker.
Answers = Callable[[Job], Answer]


def main() -> None:
    """Answer jobs until the server closes the socket."""
    seconds, num_bytes, duty, *rest = sys.argv[1:]
    loads: dict[str, Callable[[], Answers]] = {
        "prompts": lambda: prompt_answers(Path(rest[0]), _refuse_body),
        "bodies": lambda: prompt_answers(Path(rest[0]), find_object(rest[1], "module:name")()),
        "shapes": shape_answers,
    }
    serve_jobs(float(seconds), int(num_bytes), loads[duty])


def _refuse_body(maker: PromptMaker, job: BodyJob) -> ReadBody | Refused:
    raise AssertionError("this worker was not started to read bodies")


def prompt_answers(path: Path, read_body: ReadBodies) -> Answers:
    """Read the tokenizer of a model; return what answers the jobs that need it."""
    import octavo.text.chat.template  # noqa: F401 (the first chat need not wait)

    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    return partial(_answer, PromptMaker(load_tokenizer_at(path)), read_body)


def serve_jobs(seconds: float, num_bytes: int, load: Callable[[], Answers]) -> None:
    """Load what answers the jobs, then answer them until the server closes the socket.

    After `seconds` in one job the process ends itself, should the server be gone. A job may take
    `num_bytes` of memory.
    """
    with open(0, "rb") as source, open(0, "wb", closefd=False) as sink:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, LOAD_SECONDS)
        limit_memory(LOAD_BYTES, is_final=False)
        try:
            with no_collection():
                answer_to = load()
        except (ValueError, OSError, MemoryError) as error:
            write_frame(sink, encode(Refused(message=_why_unusable(error))))
            return
        decode: msgspec.msgpack.Decoder[Job] = msgspec.msgpack.Decoder(Job)
        _confine(num_bytes)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_frame(sink, encode(Ready()))
        while (frame := read_frame(source)) is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                answer = answer_to(decode.decode(frame))
            except MemoryError:
                mebibytes = num_bytes >> 20
                answer = Refused(message=f"the prompt takes more than {mebibytes} MiB to prepare")
            signal.setitimer(signal.ITIMER_REAL, 0)
            write_frame(sink, encode(answer))
            if len(frame) > LARGE_FRAME_BYTES or isinstance(answer, Refused):
                del frame, answer
                give_back_freed()


def _answer(maker: PromptMaker, read_body: ReadBodies, job: Job) -> Answer:
    try:
        match job:
            case PromptJobs():
                return PreparedPrompts(maker.make_all(job.jobs))
            case TableJob():
                return maker.tokenizer.pack()
            case BodyJob():
                return read_body(maker, job)
            case ShapeJob() | AnswerJob():
                raise AssertionError("another worker checks shapes")
    except TokenizerError as error:
        return Refused(message=str(error))


def _why_unusable(error: Exception) -> str:
    """Return what is wrong with the tokenizer, in one line."""
    if isinstance(error, MemoryError):
        return f"the tokenizer takes more than {LOAD_BYTES >> 30} GiB of memory to read"
    return valid_text(str(error)[:MAX_MESSAGE_CHARACTERS])


def _confine(num_bytes: int) -> None:
    """Limit this process to what a job may take; all that was loaded stays."""
    freeze()
    give_back_freed()
    confine_worker(num_bytes)


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
    main()
