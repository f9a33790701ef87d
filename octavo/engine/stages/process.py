"""The main program of a further stage: `python -m octavo.engine.stages.process`.

Only an engine starts it. It loads the weights of its layers, confines itself as the engine does,
and computes these layers of each step. It knows no request. It ends with the engine.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading

from octavo.backends.native.backend import NativeBackend
from octavo.backends.native.stages.backend import follow
from octavo.distributed.context import StagePlace
from octavo.engine.ranks.process import compute


def main(argv: list[str]) -> int:
    """Compute the layers of a stage until the engine ends; return the exit status."""
    parser = argparse.ArgumentParser(prog=__name__, description=__doc__)
    for name in ("--link", "--steps", "--stage", "--stages"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args(argv)
    place = StagePlace(options.stage, options.stages, (options.steps,))
    return compute(options.link, place, _follow)


def _follow(backend: NativeBackend) -> None:
    """Compute steps until their connection ends, and wait for the end of the other one.

    That one ends this process: it says whether the engine has ended, or only its steps.
    """
    follow(backend)
    threading.Event().wait()


if __name__ == "__main__":
    # Nothing is left to save, and what native code refers to need not be taken apart.
    os._exit(main(sys.argv[1:]))
