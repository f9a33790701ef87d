"""A confined prompt worker renders whatever templates may do, and reaches no files."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from octavo.confine.filter import why_unavailable
from octavo.workers.frames import read_frame, write_frame
from octavo.workers.jobs import (
    Answer,
    Conversation,
    Job,
    PreparedPrompt,
    PreparedPrompts,
    PromptJob,
    PromptJobs,
    Ready,
    Refused,
)
from tests.api.tiny import make_tokenizer_files

ROOT = Path(__file__).parents[3]
ARGUMENTS = ("300", str(1 << 30))  # seconds and bytes of a job
ENCODER = msgspec.msgpack.Encoder()
DECODER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class Worker:
    """A worker's process, and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], source: BinaryIO, sink: BinaryIO) -> None:
        self.process = process
        self._source, self._sink = source, sink
        assert isinstance(self._read(), Ready)

    def _read(self) -> Answer:
        frame = read_frame(self._source)
        assert frame is not None, "the worker has ended"
        return DECODER.decode(frame)

    def answer(self, template: str) -> PreparedPrompt | Refused:
        """Return the answer to a conversation with this template."""
        talk = Conversation(messages=[{"role": "user", "content": "hi"}], template=template)
        job: Job = PromptJobs([PromptJob(conversation=talk)])
        write_frame(self._sink, ENCODER.encode(job))
        answer = self._read()
        assert isinstance(answer, PreparedPrompts)
        (prompt,) = answer.prompts
        return prompt


@contextmanager
def running(directory: Path) -> Iterator[Worker]:
    """Yield a worker that has read a small tokenizer."""
    ours, theirs = socket.socketpair()
    command = (sys.executable, "-P", "-m", "octavo.workers.program", *ARGUMENTS)
    with ours, ours.makefile("rb") as source, ours.makefile("wb") as sink:
        with theirs:
            process = subprocess.Popen(
                [*command, "prompts", str(directory)],
                stdin=theirs.fileno(),
                cwd=ROOT,
                env={"PYTHONPATH": str(ROOT)},
            )
        try:
            yield Worker(process, source, sink)
        finally:
            process.kill()
            process.wait()


# Each makes Python import something, or look for it, where nothing was imported before.
RENDERED = {
    "{{ strftime_now('%Y')|length }}": "4",
    "{{ 'a b c'|wordwrap(3) }}": "a b\nc",
    "{{ '<b>x</b>'|striptags }}": "x",
    "{{ '&'|urlencode }}": "%26",
    "{{ 'www.a.example'|urlize|length > 13 }}": "True",
    "{{ [1]|pprint }}": "[1]",
    "{{ {'a': 'é'}|tojson }}": '{"a": "é"}',
    "{{ ['x']|random }}": "x",
    "{{ 'é'.encode()|length }}": "2",
}
REFUSED = (
    "{% for %}",
    "{{ 1 / 0 }}",
    "{{ missing.field }}",
    "{{ raise_exception('no') }}",
    "{{ 'a'.encode('punycode') }}",
    "{% include 'file' %}",
    "{{ '\\ud800' }}",
)


def test_templates_that_need_modules_are_rendered_or_refused(tmp_path: Path) -> None:
    with running(make_tokenizer_files(tmp_path)) as worker:
        for template, text in RENDERED.items():
            answer = worker.answer(template)
            assert isinstance(answer, PreparedPrompt), answer
            assert answer.text == text
        for template in REFUSED:
            answer = worker.answer(template)
            assert isinstance(answer, Refused)
            assert "Permission denied" not in answer.message
            assert str(ROOT) not in answer.message
        assert worker.process.poll() is None


@pytest.mark.skipif(why_unavailable() is not None, reason="this kernel has no filters")
def test_all_threads_of_a_worker_are_confined(tmp_path: Path) -> None:
    with running(make_tokenizer_files(tmp_path)) as worker:
        for thread in (Path("/proc") / str(worker.process.pid) / "task").iterdir():
            status = (thread / "status").read_text()
            assert "\nNoNewPrivs:\t1\n" in status
            assert "\nSeccomp:\t2\n" in status
