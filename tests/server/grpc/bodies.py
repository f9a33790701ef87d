"""The matrix's bodies of gRPC's requests."""

from __future__ import annotations

from typing import Any

from tests.server.matrix.prompts import SAMPLING, TEXT

BODIES: dict[str, dict[str, Any]] = {
    "RpcGenerateRequest": {"prompt": TEXT, "sampling_params": SAMPLING},
    "RpcEmbedRequest": {"prompt": TEXT},
}
