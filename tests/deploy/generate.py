"""The files of `deploy/` made from the catalogue: `python -m tests.deploy.generate --write`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.deploy.alerts import rules
from tests.deploy.catalogue import catalogue
from tests.deploy.dashboard import dashboard

ROOT = Path(__file__).parents[2] / "deploy"


def made() -> dict[Path, str]:
    """Return the content of each file."""
    return {
        ROOT / "grafana" / "octavo.json": dashboard(catalogue()),
        ROOT / "prometheus" / "alerts.yaml": rules(),
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        for path, text in made().items():
            path.write_text(text, "utf-8")
    else:
        sys.exit("usage: python -m tests.deploy.generate --write")
