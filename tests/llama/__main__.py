"""llama.cpp's tests of its server, run from its checkout against `octavo serve`.

    python -m tests.llama CHECKOUT
    python -m tests.llama CHECKOUT unit/test_completion.py
    python -m tests.llama CHECKOUT --theirs path/to/llama-server

Nothing of the checkout is copied. Its tests download models; stand-ins of random weights take their
place, so that tests about what a model says fail, with any server: `--theirs` runs llama-server
itself over the same models. What is left is counted by file, and each failure is named.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from octavo.env import child_environment
from tests.llama.reasons import is_of_words
from tests.llama.standins import make_all

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "llama-tests"
PORT = 18080


def run_tests(checkout: Path, words: list[str], theirs: str | None) -> Path:
    """Run the tests in their own directory; return the report in XML."""
    tests = checkout / "tools" / "server" / "tests"
    if not (tests / "utils.py").is_file():
        raise SystemExit(f"{checkout} is no checkout of llama.cpp: it has no tools/server/tests")
    make_all(FOLDER, checkout)
    program, report = FOLDER / "server", FOLDER / "report.xml"
    other = os.path.abspath(theirs) if theirs else ""
    command = f'"{sys.executable}" -P -m tests.llama.server "{FOLDER}" "{other}" "$@"'
    program.write_text(f"#!/bin/sh\nexec {command}\n")
    program.chmod(0o755)
    report.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-p", "tests.llama.plugin", "-p", "no:cacheprovider"]
    pytest += ["--llama-folder", str(FOLDER), *(("--llama-theirs",) if theirs else ())]
    pytest += ["-m", "not slow", "-o", "junit_family=xunit1", f"--junitxml={report}"]
    environment = {
        "PYTHONPATH": str(ROOT),
        "PYTHONPYCACHEPREFIX": str(FOLDER / "bytecode"),
        "LLAMA_SERVER_BIN_PATH": str(program),
        "PORT": str(PORT),
    }
    subprocess.run([*pytest, *words], cwd=tests, env=child_environment(environment), check=False)
    if not report.is_file():
        raise SystemExit("the tests have not been run: see above")
    return report


def outcomes(report: Path) -> dict[str, str]:
    """Return how each test ended, by its file and name."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{Path(case.get('file') or '').name}::{case.get('name')}"
        kinds = {each.tag for each in case}
        ended = next((each for each in ("error", "failure", "skipped") if each in kinds), "passed")
        is_expected = ended in ("error", "failure") and is_of_words(name)
        found[name] = "words" if is_expected else ended
    return found


def summary(found: dict[str, str]) -> str:
    """Return a line for each file, each failure's name, and the sums."""
    files = sorted({name.partition("::")[0] for name in found})
    lines = []
    for file in files:
        counts = Counter(end for name, end in found.items() if name.partition("::")[0] == file)
        lines.append(f"{file:32} {', '.join(f'{count} {end}' for end, count in counts.items())}")
    lines += [f"FAILED {name}" for name, end in found.items() if end in ("error", "failure")]
    total = Counter(found.values())
    failed = total["error"] + total["failure"]
    lines.append(
        f"{total['passed']} passed, {total['words']} differ by what the stand-in says, "
        f"{total['skipped']} not run, {failed} failed"
    )
    return "\n".join(lines)


def main() -> int:
    """Run the tests, and say how they ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--theirs", help="the path of llama-server, to be tested itself")
    asked, words = parser.parse_known_args()
    found = outcomes(run_tests(asked.checkout.resolve(), words, asked.theirs))
    print(summary(found))
    return int(any(end in ("error", "failure") for end in found.values()))


if __name__ == "__main__":
    sys.exit(main())
