"""The program of a prompt worker: `octavo.server.worker_program SECONDS BYTES PATH [bodies]`.

It answers the jobs of `octavo.text.prompt_worker`, within these limits of one job. With the
argument `bodies` it also reads large bodies of requests, for which it imports the dialects.
"""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.text.prompt_worker import (
    BodyJob,
    PromptMaker,
    ReadBodies,
    ReadBody,
    Refused,
    serve_jobs,
)

BODIES = "bodies"


def main() -> None:
    """Answer jobs until the server closes the socket."""
    seconds, num_bytes, path = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    read_body: ReadBodies = _refuse_body
    if BODIES in sys.argv[4:]:
        read_body = _body_reader()
    serve_jobs(seconds, num_bytes, path, read_body)


def _body_reader() -> ReadBodies:
    """Return the reader of bodies, and import what it needs before a job counts the time."""
    import octavo.server.routes  # noqa: F401 (all dialects)
    from octavo.server.large_bodies import read_body

    return read_body


def _refuse_body(maker: PromptMaker, job: BodyJob) -> ReadBody | Refused:
    raise AssertionError("this worker was not started to read bodies")


if __name__ == "__main__":
    main()
