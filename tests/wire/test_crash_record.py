"""The crash record: what the engine wrote last is what the front end reads."""

from __future__ import annotations

import os

from octavo.wire import crash_record
from octavo.wire.crash_record import MAX_NUMBERS, CrashRecord


def test_the_other_side_reads_what_was_written_last() -> None:
    descriptor = CrashRecord.make()
    writer, reader = CrashRecord(descriptor), CrashRecord(descriptor)
    os.close(descriptor)
    assert reader.read() == ()
    for numbers in ((1, 2**63), (7,), (), tuple(range(MAX_NUMBERS + 5))):
        writer.write(numbers)
        assert reader.read() == numbers[:MAX_NUMBERS]
    writer.close()
    reader.close()


def test_a_crash_in_the_middle_of_a_write_leaves_what_was_written_before() -> None:
    descriptor = CrashRecord.make()
    writer, reader = CrashRecord(descriptor), CrashRecord(descriptor)
    os.close(descriptor)
    writer.write((1, 2, 3))
    begin = crash_record._HEADER_BYTES + (1 - writer._memory[0]) * crash_record._HALF_BYTES
    writer._memory[begin : begin + 12] = b"\xff" * 12  # an unfinished write
    assert reader.read() == (1, 2, 3)
    reader._memory[crash_record._HEADER_BYTES :] = b"\xff" * (crash_record.SIZE_BYTES - 8)
    assert len(reader.read()) == MAX_NUMBERS  # whatever the memory holds, no more than fits
