"""The CUDA backend, as it is known before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.backends.kind import BackendSettings, Caps, Sizes, WeightFile
from octavo.backends.torch.kv_types import check_kv_dtype, is_short_kv
from octavo.env import interprets_kernels
from octavo.observe.finding import Finding
from octavo.observe.machine import Memory

if TYPE_CHECKING:
    from octavo.backends.cuda.accelerator import Accelerator
    from octavo.backends.cuda.backend import CudaBackend
    from octavo.backends.cuda.footprint import CudaFootprint
    from octavo.distributed.context import Place

_CARDS = Path("/proc/driver/nvidia/gpus")  # a directory for each, where there is a driver
_DRIVERS = Path("/dev/nvidiactl"), Path("/dev/dxg")
_FAKE = "fake"
_FAKE_MAKER = "def _setup_privateuseone_for_python_backend("  # newer PyTorch has it
UNTRIED = "experimental: not yet run on a GPU"


class CudaKind:
    """The kind of `CudaBackend` on one device; implements `octavo.backends.kind.BackendKind`."""

    options = (
        "cuda_kernels",
        "kv_cache_dtype",
        "fp8_activations",
        "tensor_parallel_size",
        "tensor_parallel_form",
    )
    instead: Mapping[str, str] = {
        "num_threads": "leave it out: the card computes",
        "cpu_weights": "leave it out, as quantization: the card has the weights as the files do, "
        "of which octavo quantize --to fp8 makes FP8",
        "cpu_activations": "leave it out; fp8_activations chooses what rows become on a card",
    }
    sizes = Sizes(block_size=16, max_num_seqs=128, max_num_batched_tokens=2048, branches=0)
    may_read = True  # modules and kernels, when torch uses them first
    ranks_have_devices = True

    def __init__(self, device: str = "cuda") -> None:
        self._device = device

    def at(self, device: str) -> CudaKind:
        return CudaKind(device)

    @property
    def _index(self) -> int:
        return int(self._device.partition(":")[2] or 0)

    def caps(self, block_size: int | None = None) -> Caps:
        spec = find_spec("torch")
        if spec is None or spec.origin is None:
            return Caps("PyTorch is not installed", "pip install 'octavo[cuda]'")
        if self._device == _FAKE:
            maker = Path(spec.origin).with_name("utils") / "backend_registration.py"
            if _FAKE_MAKER not in maker.read_text():
                return Caps(f"PyTorch {_version('torch')} makes no fake devices", "install 2.13")
            return Caps()
        number = _num_cards()
        if not number and not any(each.exists() for each in _DRIVERS):
            return Caps("no NVIDIA card is found", "install its driver, or leave device='cuda' out")
        if "cuda: Optional[str] = None" in Path(spec.origin).with_name("version.py").read_text():
            return Caps(
                f"PyTorch {_version('torch')} was built without CUDA",
                "install its build for CUDA: pip install 'octavo[cuda]'",
            )
        if number and self._index >= number:
            return Caps(
                f"there is no card {self._index} among {number}, whose numbers begin at 0",
                "take one of them",
            )
        return Caps()

    def report(self) -> list[Finding]:
        return [
            Finding("cuda backend", f"PyTorch {_version('torch')}; {UNTRIED} (docs/gpu.md)"),
            _kernels_found(),
        ]

    def check(self, settings: BackendSettings, *, is_first: bool) -> None:
        check_kv_dtype(settings.kv_cache_dtype, "cuda")
        if settings.tensor_parallel_size > 1:
            self._check_ranks(settings)
        if settings.cuda_kernels == "torch":
            return
        if find_spec("triton") is None:
            raise ValueError(
                "cuda_kernels='triton' needs Triton, which is not installed: pip install triton, "
                "or leave cuda_kernels out"
            )
        if self._device == _FAKE and not interprets_kernels():
            raise ValueError(
                "cuda_kernels='triton' on the fake device needs Triton's interpreter: set "
                "TRITON_INTERPRET=1"
            )

    def _check_ranks(self, settings: BackendSettings) -> None:
        """Refuse what ranks on devices of their own do not compute."""
        ranks, speculation = settings.tensor_parallel_size, settings.speculative_config
        asked = f"tensor_parallel_size={ranks} with device={self._device!r}"
        number = None if self._device == _FAKE else _num_cards()
        if number is not None and self._index + ranks > number:
            raise ValueError(
                f"{asked} needs the cards {self._index} to {self._index + ranks - 1}, and there "
                f"are {number}, whose numbers begin at 0: lower tensor_parallel_size"
            )
        unfit = {
            "tensor_parallel_form='outputs'": (
                settings.tensor_parallel_form == "outputs",
                "what is divided by outputs alone lies in memory that all ranks share",
            ),
            "enable_lora": (settings.enable_lora, "adapters are not divided among cards yet"),
            f"kv_cache_dtype={settings.kv_cache_dtype!r}": (
                is_short_kv(settings.kv_cache_dtype),
                "a cache of eight bits is not divided among cards yet",
            ),
            f"fp8_activations={settings.fp8_activations!r}": (
                settings.fp8_activations in ("dynamic", "static"),
                "each rank would round its part of a row by a scale of its own",
            ),
            "speculative_config": (
                speculation is not None and speculation.has_drafter,
                "a model that drafts is not divided among cards yet; ngram and suffix work",
            ),
        }
        for name, (is_asked, why) in unfit.items():
            if is_asked:
                raise ValueError(f"{name} and {asked}: {why}; leave one of them out")

    def dtype(self, settings: BackendSettings) -> str:
        return "bfloat16" if settings.dtype == "auto" else settings.dtype

    def footprint(self, settings: BackendSettings) -> CudaFootprint:
        from octavo.backends.cuda.footprint import CudaFootprint

        return CudaFootprint(
            self.dtype(settings),
            has_short_kv=is_short_kv(settings.kv_cache_dtype),
            has_graphs=_captures(settings),
        )

    @cached_property
    def _accelerator(self) -> Accelerator:
        if self._device == _FAKE:
            from octavo.backends.cuda.fake.accelerator import FakeAccelerator

            return FakeAccelerator()
        from octavo.backends.cuda.card import CudaAccelerator

        return CudaAccelerator(self._index)

    def memory(self) -> Memory:
        return self._accelerator.memory()

    def make(
        self,
        settings: BackendSettings,
        files: Iterable[WeightFile],
        place: Place | None = None,
    ) -> CudaBackend:
        from octavo.backends.cuda.backend import CudaBackend

        dtype, options = self.dtype(settings), _options(settings)
        if place is None:
            return CudaBackend(self._accelerator, dtype, **options)
        from octavo.backends.cuda.ranks import FollowingBackend, LeadingBackend
        from octavo.distributed.context import DevicePlace

        assert isinstance(place, DevicePlace), "its ranks have devices of their own"
        make = LeadingBackend if place.rank == 0 else FollowingBackend
        return make(self._of_rank(place.rank)._accelerator, dtype, place, **options)

    def _of_rank(self, rank: int) -> CudaKind:
        """Return the kind on a rank's device: they have one after the other."""
        if rank == 0 or self._device == _FAKE:
            return self
        return CudaKind(f"cuda:{self._index + rank}")


def _num_cards() -> int | None:
    """Return how many cards the driver lists; None where it lists none, as under WSL2.

    The card is then looked for when it is opened.
    """
    return len(list(_CARDS.iterdir())) if _CARDS.is_dir() else None


def _options(settings: BackendSettings) -> dict[str, Any]:
    """Return the options of the backend by name, which are those of all its ranks."""
    has_kernels = settings.cuda_kernels == "triton"
    activations = settings.fp8_activations
    if activations == "auto":  # each rank would round its part of a row by a scale of its own
        activations = "dynamic" if settings.tensor_parallel_size == 1 else "dtype"
    return {
        "has_kernels": has_kernels,
        "captures": _captures(settings),
        "activations": activations,
        "has_short_kv": is_short_kv(settings.kv_cache_dtype),
    }


def _captures(settings: BackendSettings) -> bool:
    """Return whether decode steps become graphs; attention by torch's operations cannot."""
    return settings.cuda_kernels == "triton" and not settings.enforce_eager


def _kernels_found() -> Finding:
    """Return what kernels compute if they are asked for, or that they cannot be."""
    from importlib.metadata import PackageNotFoundError

    from octavo.backends.cuda.providers import KERNELS

    try:
        found = _version("triton")
    except PackageNotFoundError:
        return Finding("cuda kernels", "none: Triton is not installed (pip install triton)")
    what = ", ".join(KERNELS.values())
    return Finding("cuda kernels", f"Triton {found}, for --cuda-kernels triton: {what}")


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


KIND = CudaKind()
