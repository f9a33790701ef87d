"""The check of shapes for programs that use the engine as a library, in a process beside theirs.

A shape may come from anywhere, and one that takes gigabytes to compile must not end the program.
The process starts with the first shape; all models of a program share it.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
from threading import Lock

import msgspec

from octavo.grammar.checked import CheckedShape, ShapeJob
from octavo.workers.frames import LENGTH, AnswerFrames
from octavo.workers.jobs import Ready, Refused
from octavo.workers.launch import launch

START_SECONDS = 60.0
SHAPE_SECONDS = 2.0  # for one shape
SHAPE_BYTES = 2 << 30  # of memory for it
SPARE_SECONDS = 1.0  # the process ends itself so long after it should have been killed

_encode = msgspec.msgpack.Encoder().encode


class ShapeChecker:
    """A process that checks shapes, one after the other; threads may share it."""

    def __init__(self, seconds: float = SHAPE_SECONDS, num_bytes: int = SHAPE_BYTES) -> None:
        self._seconds = seconds
        self._num_bytes = num_bytes
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._answers = AnswerFrames()
        self._num_jobs = 0
        self._owner = 0  # the process that has started it: a fork needs one of its own

    def check(self, job: ShapeJob) -> CheckedShape:
        """Return a shape's grammar, or what is wrong with the shape."""
        with self._lock:
            self._num_jobs += 1
            job = msgspec.structs.replace(job, number=self._num_jobs)
            try:
                frame = _encode(job)
            except OverflowError:  # JSON has such numbers, msgpack does not
                return _wrong(job, "a number has more than 64 bits; write it as a string")
            try:
                return self._checked(job, frame)
            except BaseException:  # an answer that comes later would be that of the next shape
                self._end()
                raise

    def _checked(self, job: ShapeJob, frame: bytes) -> CheckedShape:
        """Return what the process answers, or why it does not; there is a lock on it."""
        try:
            connection = self._started()
        except OSError as error:
            what = f"the process that checks shapes did not start: {error}"
            return _wrong(job, what, is_passing=True)
        limit = f"more than {self._num_bytes >> 20} MiB, the limit, to compile; simplify it"
        try:
            connection.sendall(LENGTH.pack(len(frame)) + frame)
            answer = self._answers.wait(connection, self._seconds)
        except TimeoutError:
            self._end()
            took = f"it takes more than {self._seconds:g} s, the limit, to compile; simplify it"
            return _wrong(job, took, is_passing=True)
        except OSError:
            self._end()
            what = f"its check ended with its process: it takes {limit}"
            return _wrong(job, what, is_passing=True)
        if isinstance(answer, Refused):
            return _wrong(job, f"it takes {limit}")
        assert isinstance(answer, CheckedShape), "the process answers what it is asked"
        assert answer.number == job.number, "the process answers each job once, in their order"
        return answer

    def close(self) -> None:
        """End the process; a further shape starts another one."""
        with self._lock:
            self._end()

    def _started(self) -> socket.socket:
        """Return the connection to the process; start it if there is none."""
        if self._connection is not None and self._owner == os.getpid():
            return self._connection
        seconds = self._seconds + SPARE_SECONDS
        self._process, self._connection = launch(seconds, self._num_bytes, "shapes")
        self._answers = AnswerFrames()
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            first = self._answers.wait(self._connection, START_SECONDS)
        except OSError:
            process, why = self._process, ""
            process.kill()
            if process.stderr is not None:
                why = process.stderr.read().decode("utf-8", "replace").strip()
            self._end()
            raise OSError(why.splitlines()[-1] if why else "it ended at once") from None
        assert isinstance(first, Ready), "shapes need no files that could be wrong"
        return self._connection

    def _end(self) -> None:
        """Kill the process, if there is one of ours."""
        process, connection = self._process, self._connection
        self._process = self._connection = None
        atexit.unregister(self.close)
        if connection is not None:
            connection.close()
        if process is not None and self._owner == os.getpid():
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def _wrong(job: ShapeJob, what: str, *, is_passing: bool = False) -> CheckedShape:
    field = next((name for name in _KINDS if job.fields.get(name) is not None), "json")
    return CheckedShape(what=what, field=field, is_passing=is_passing)


_KINDS = ("json", "regex", "choice", "grammar", "structural_tag", "json_object")
SHARED = ShapeChecker()
