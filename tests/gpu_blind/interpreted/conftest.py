"""Every launch of these tests is repaired and watched."""

from __future__ import annotations

from tests.gpu_blind.interpreted import repair, sanitizer

repair.install()
sanitizer.install()
