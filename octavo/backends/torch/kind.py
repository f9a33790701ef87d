"""The torch backend, as it is known before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from octavo.backends.kind import BackendSettings, Caps, Sizes, WeightFile
from octavo.backends.torch.kv_types import check_kv_dtype, is_short_kv
from octavo.observe import machine
from octavo.observe.finding import Finding

if TYPE_CHECKING:
    from octavo.backends.torch.backend import TorchBackend
    from octavo.backends.torch.footprint import TorchFootprint
    from octavo.distributed.context import Place


class TorchKind:
    """The kind of `TorchBackend`; implements `octavo.backends.kind.BackendKind`."""

    options: tuple[str, ...] = ("kv_cache_dtype", "fp8_activations")
    instead: Mapping[str, str] = {
        "num_threads": "set OMP_NUM_THREADS, from which it takes its number, or leave it out"
    }
    sizes = Sizes(block_size=16, max_num_seqs=64, max_num_batched_tokens=512)
    may_read = True  # modules and kernels, when torch uses them first
    ranks_have_devices = False

    def at(self, device: str) -> TorchKind:
        return self

    def caps(self, block_size: int | None = None) -> Caps:
        if find_spec("torch") is None:
            return Caps("PyTorch is not installed", "pip install 'octavo[torch]'")
        return Caps()

    def report(self) -> list[Finding]:
        return [Finding("torch backend", f"PyTorch {_torch_version()}, on the CPU: the reference")]

    def check(self, settings: BackendSettings, *, is_first: bool) -> None:
        check_kv_dtype(settings.kv_cache_dtype, "torch")

    def dtype(self, settings: BackendSettings) -> str:
        return {"auto": "float32", "float16": "bfloat16"}.get(settings.dtype, settings.dtype)

    def footprint(self, settings: BackendSettings) -> TorchFootprint:
        from octavo.backends.torch.footprint import TorchFootprint

        is_short = is_short_kv(settings.kv_cache_dtype)
        return TorchFootprint(self.dtype(settings), has_short_kv=is_short)

    def memory(self) -> machine.Memory:
        return machine.memory()

    def make(
        self,
        settings: BackendSettings,
        files: Iterable[WeightFile],
        place: Place | None = None,
    ) -> TorchBackend:
        from octavo.backends.torch.backend import TorchBackend

        assert place is None, "it has no ranks"

        asked = settings.fp8_activations
        return TorchBackend(
            self.dtype(settings),
            activations={"auto": "dtype"}.get(asked, asked),
            has_short_kv=is_short_kv(settings.kv_cache_dtype),
        )


def _torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


KIND = TorchKind()
