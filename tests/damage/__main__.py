"""The whole corpus of damaged models: `python -m tests.damage`, or `make damage`."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

from tests.damage.corpus import MODELS, write_model
from tests.damage.trial import trial


def main() -> int:
    """Try every mutant; print what is wrong, and the numbers."""
    logging.disable(logging.CRITICAL)
    num_tried = num_wrong = 0
    for name in MODELS:
        with tempfile.TemporaryDirectory() as directory:
            model, mutants = write_model(name, Path(directory))
            for mutant in mutants:
                what = trial(model, mutant)
                num_tried += 1
                if what is not None:
                    num_wrong += 1
                    print(f"{name}: {mutant.file}: {mutant.name}: {what}", flush=True)
        print(f"{name}: {len(mutants):,} mutants", flush=True)
    print(
        f"{num_tried:,} mutants, {num_wrong:,} of them neither loaded nor refused as they must be"
    )
    return int(num_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
