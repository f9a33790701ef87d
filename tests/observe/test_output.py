"""Output never blocks a server or ends it: lines without room are dropped, counted and reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from octavo.observe.output import DroppingFile

LIMIT = 300.0  # seconds that a program may take at most; no test depends on it

HEAD = """
import os, subprocess, sys, time
from octavo.observe import output
output.CLOSE_SECONDS = 0.01
answers = os.fdopen(int(sys.argv[1]), "w")
def answer(value):
    print(value, file=answers, flush=True)
def until(condition):
    while not condition():
        time.sleep(0.001)
"""

# The child writes with the system's own call, as native code does.
STALL = (
    HEAD
    + """
CHILD = "import os; [os.write(2, b'child' + b'y' * 94 + b'\\\\n') for _ in range(100)]"
with output.output_never_blocks():
    for index in range(30_000):
        sys.stderr.write(f"{index:09} " + "x" * 89 + "\\n")
    child = subprocess.run([sys.executable, "-c", CHILD], check=False)
    until(lambda: output.num_dropped_lines() > 10_000)
    answer(child.returncode)
    sys.stdin.readline()
"""
)


def start(
    program: str, stdout: int | None = None, stderr: int | None = None
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program; return it, and the descriptor from which its answers are read."""
    source, sink = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(sink)],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        pass_fds=(sink,),
    )
    os.close(sink)
    return process, source


def test_a_reader_that_stalls_does_not_block_the_process_or_its_children() -> None:
    process, source = start(STALL, stderr=subprocess.PIPE)
    with process, os.fdopen(source) as answers:
        assert answers.readline() == "0\n"
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.close()
        assert process.wait(LIMIT) == 0
        lines = process.stderr.read().split(b"\n")
    whole = [f"{index:09} ".encode() + b"x" * 89 for index in range(len(lines) - 1)]
    assert lines[:-1] == whole, "the first lines arrive, whole and in order"


def test_a_reader_that_continues_learns_how_many_lines_it_missed() -> None:
    process, source = start(STALL, stderr=subprocess.PIPE)
    with process, os.fdopen(source) as answers:
        answers.readline()
        assert process.stdin is not None
        assert process.stderr is not None
        for line in process.stderr:
            # On a busy machine a few lines may be dropped, and reported, before the reader stalls.
            is_report = b"WARNING octavo.observe.output: " in line
            if is_report and int(line.split()[-4]) > 10_000:
                break
        else:
            raise AssertionError("there is no report of all lines that were dropped")
        process.stdin.close()
        assert process.wait(LIMIT) == 0


def test_streams_that_lead_nowhere_do_not_end_the_process() -> None:
    program = (
        HEAD
        + """
with output.output_never_blocks():
    print("one", flush=True)
    print("two", file=sys.stderr)
    # If the first one is dropped early, its report is dropped too, which makes three.
    until(lambda: output.num_dropped_lines() >= 2)
answer("still there")
"""
    )
    for path in ("/dev/full", None):
        target = os.open(path, os.O_WRONLY) if path else broken_pipe()
        process, source = start(program, stdout=target, stderr=target)
        os.close(target)
        with process, os.fdopen(source) as answers:
            assert answers.readline() == "still there\n"
            assert process.wait(LIMIT) == 0


def broken_pipe() -> int:
    """Return a pipe from which nothing reads."""
    source, sink = os.pipe()
    os.close(source)
    return sink


def test_everything_arrives_where_the_streams_led(tmp_path: Path) -> None:
    """The output of Python, of native code and of children keeps its order."""
    program = (
        HEAD
        + """
import faulthandler
output.CLOSE_SECONDS = 300.0  # everything is written, however late its thread runs
print("before", file=sys.stderr)
with output.output_never_blocks():
    print("python \\udcff", file=sys.stderr)
    faulthandler.dump_traceback()
    subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('child')"])
    print(" parent", file=sys.stderr)
    print("to stdout")
print("after", file=sys.stderr)
"""
    )
    path = tmp_path / "stderr"
    with open(path, "wb") as file:
        process, source = start(program, stdout=subprocess.PIPE, stderr=file.fileno())
        stdout, _ = process.communicate(timeout=LIMIT)
    os.close(source)
    lines = path.read_text().splitlines()
    assert stdout == b"to stdout\n"
    assert lines[:2] == ["before", "python \\udcff"]
    assert "most recent call first" in lines[2]
    assert lines[-2:] == ["child parent", "after"]


def test_a_closed_stream_is_no_error() -> None:
    program = (
        HEAD
        + """
os.close(1), os.close(2)
sys.stdout = sys.stderr = None
with output.output_never_blocks():
    print("lost")
    print("lost", file=sys.stderr)
answer("still there")
"""
    )
    process, source = start(program)
    with process, os.fdopen(source) as answers:
        assert answers.readline() == "still there\n"
        assert process.wait(LIMIT) == 0


def test_a_process_without_a_relay_does_not_wait_for_a_pipe_either() -> None:
    program = (
        HEAD
        + """
import faulthandler
output.never_wait_for_stderr()
for index in range(10_000):
    print("x" * 99, file=sys.stderr)
faulthandler.dump_traceback()
answer("written")
sys.stdin.readline()
print("later", file=sys.stderr)
"""
    )
    process, source = start(program, stderr=subprocess.PIPE)
    with process, os.fdopen(source) as answers:
        assert answers.readline() == "written\n"
        assert process.stdin is not None
        assert process.stderr is not None
        for _ in range(100):
            assert process.stderr.readline() == b"x" * 99 + b"\n"
        process.stdin.close()
        rest = process.stderr.read().splitlines()
        assert process.wait(LIMIT) == 0
    assert b"WARNING octavo.observe.output: " in rest[-2]
    assert int(rest[-2].split()[-4]) > 1000
    assert rest[-1] == b"later"


def test_a_line_that_was_cut_ends_before_the_next_one() -> None:
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    file = DroppingFile(sink)
    most = 1 << 16  # the pipe's size
    assert file.write(b"a" * (most - 4096)) == most - 4096
    assert file.write(b"b" * 8192) == 8192, "a part of it fits"
    assert file.write(b"none of it fits") == 15
    assert file.num_dropped == 2
    assert os.read(source, most) == b"a" * (most - 4096) + b"b" * 4096
    file.write(b"next\n")
    assert os.read(source, most) == b"\nnext\n"
    os.close(source)
    file.write(b"nobody\n")
    assert file.num_dropped == 3
    os.close(sink)
