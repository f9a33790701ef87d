"""The native backend, as it is known before its kernels are used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from octavo import env
from octavo.backends.interface import OldModuleError
from octavo.backends.kind import BackendSettings, Caps, Sizes, WeightFile
from octavo.observe import machine
from octavo.observe.finding import Finding

if TYPE_CHECKING:
    from octavo.backends.native.backend import NativeBackend
    from octavo.backends.native.footprint import NativeFootprint
    from octavo.backends.native.packing import ExpertOwners, KeptWeights
    from octavo.distributed.context import Place, RankPlace, StagePlace
    from octavo.options.cpu_types import CpuActivations

_PACKED = (
    "cpu_weights",
    "cpu_activations",
    "kv_cache_dtype",
)  # settings of what has less than 32 bits

_ACTIVATIONS = (
    "int8 for products with weights that are integers or FP8, bf16 with all others; "
    "--cpu-activations chooses"
)


class NativeKind:
    """The kind of `NativeBackend`; implements `octavo.backends.kind.BackendKind`."""

    options = (
        *_PACKED,
        *("num_threads", "cpu_isa", "accumulation_order", "preallocate_kv_cache"),
        *("tensor_parallel_size", "tensor_parallel_form", "pipeline_parallel_size"),
        *("enable_expert_parallel", "enable_eplb", "eplb_config"),
        *("packed_cache", "packed_cache_bytes"),
    )
    instead: Mapping[str, str] = {
        "fp8_activations": "leave it out; cpu_activations chooses what the native engine rounds to"
    }
    sizes = Sizes(block_size=16, max_num_seqs=64, max_num_batched_tokens=512)
    may_read = False
    ranks_have_devices = False

    def at(self, device: str) -> NativeKind:
        return self

    def caps(self, block_size: int | None = None) -> Caps:
        try:
            from octavo.backends.native import _native
        except OldModuleError as error:
            return Caps(str(error), is_old=True)
        except ImportError as error:
            return Caps(
                f"its extension module is missing ({error})",
                "install Octavo from a wheel, or install a C++ compiler and CMake, then Octavo "
                "again",
            )
        if block_size is not None and block_size % _native.BLOCK_TOKENS:
            return Caps(f"block_size={block_size} is not a multiple of {_native.BLOCK_TOKENS}")
        return Caps()

    def report(self) -> list[Finding]:
        from octavo.backends.native import _native

        tiers = ", ".join(_native.tiers())
        findings = [
            Finding("native backend", f"runs, with kernels for {tiers}"),
            Finding("activations", _ACTIVATIONS),
        ]
        for name, reason in _native.dropped_tiers().items():
            advice = "the next best kernels are used; look for a newer Linux kernel or microcode"
            findings.append(Finding(f"kernels for {name}", f"not used: {reason}", advice))
        try:
            _check_kernels(0, "", "")
        except ValueError as error:
            advice = "mend or unset the variable"
            return [*findings, Finding("kernels", str(error), advice, is_fatal=True)]
        return findings + [Finding("kernels", found) for found in _measured_kernels()]

    def check(self, settings: BackendSettings, *, is_first: bool) -> None:
        for name in _PACKED:
            value = getattr(settings, name)
            if value != "auto" and not self._is_packed(settings):
                raise ValueError(
                    f"{name}={value!r} is not possible beside dtype='float32', which keeps "
                    "everything exact; leave one of them out"
                )
        drafting = settings.speculative_config
        if drafting is not None and drafting.weights is not None and not self._is_packed(settings):
            raise ValueError(
                f"speculative_config: quantization={drafting.quantization!r} is not possible "
                "beside dtype='float32', which keeps everything exact; leave one of them out"
            )
        _check_activations(settings.cpu_weights, settings.cpu_activations)
        _check_kernels(settings.num_threads, settings.cpu_isa, settings.accumulation_order)
        if is_first and settings.packed_cache is not None:
            from octavo.backends.native.packed_cache.place import check_directory

            check_directory(settings.packed_cache, settings.packed_cache_bytes)

    def dtype(self, settings: BackendSettings) -> str:
        return "float32" if settings.dtype == "float32" else "bfloat16"

    def _is_packed(self, settings: BackendSettings) -> bool:
        """Return whether weights are laid out for the kernels in less than 32 bits."""
        return self.dtype(settings) != "float32"

    def footprint(self, settings: BackendSettings) -> NativeFootprint:
        from octavo.backends.native.footprint import NativeFootprint
        from octavo.backends.native.kv_formats import kv_dtype_named

        if not self._is_packed(settings):
            return NativeFootprint("float32", "float32", drafter_weights="float32")
        is_asked = settings.dtype in ("bfloat16", "float16") and settings.cpu_weights == "auto"
        weights = "bfloat16" if is_asked else settings.cpu_weights
        kv_dtype = kv_dtype_named(settings.kv_cache_dtype)
        activations = cast("CpuActivations", settings.cpu_activations)
        return NativeFootprint(
            cast("KeptWeights", weights),
            kv_dtype,
            activations,
            drafter_weights=_drafter_weights(settings),
        )

    def memory(self) -> machine.Memory:
        return machine.memory()

    def make(
        self,
        settings: BackendSettings,
        files: Iterable[WeightFile],
        place: Place | None = None,
    ) -> NativeBackend:
        from octavo.backends.native.backend import NativeOptions
        from octavo.backends.native.packed_cache.place import packed_cache
        from octavo.distributed.context import DevicePlace

        assert not isinstance(place, DevicePlace), "its ranks have one memory"
        footprint, owners = self.footprint(settings), _owners(settings, place)
        make, is_first = _class_at(place)
        return make(
            NativeOptions(
                kv_dtype=footprint.kv_dtype,
                weights=footprint.weights,
                drafter_weights=footprint.drafter_weights,
                activations=footprint.activations,
                num_threads=settings.num_threads or env.cpu_threads(),
                instruction_set=settings.cpu_isa or env.cpu_instruction_set(),
                accumulation_order=settings.accumulation_order,
                measured_file=_measured_file() if is_first else None,  # the others follow
                packed_cache=packed_cache(
                    settings, files, footprint.formats, _share(place, owners)
                ),
                preallocates_kv=settings.preallocate_kv_cache and _has_own_cache(place),
                place=place,
                owners=owners,
            )
        )


def _drafter_weights(settings: BackendSettings) -> KeptWeights:
    """Return what the floats of a model that drafts become: a narrow format by default.

    Its passes take the time of reading its weights, and no text depends on what it proposes.
    """
    asked = settings.speculative_config
    if asked is not None and asked.weights is not None:
        return asked.weights
    own = settings.cpu_weights
    return "int8" if own in ("auto", "bf16") else cast("KeptWeights", own)


def _class_at(place: RankPlace | StagePlace | None) -> tuple[type[NativeBackend], bool]:
    """Return the class of the backend at a place, and whether the engine is there."""
    from octavo.backends.native.backend import NativeBackend
    from octavo.distributed.context import StagePlace

    if place is None:
        return NativeBackend, True
    if isinstance(place, StagePlace):
        from octavo.backends.native.stages.backend import FirstStage, LeadingStage, StageBackend

        if not place.leads:
            return StageBackend, False
        if place.stage == 0:
            return FirstStage, True
        return (StageBackend if place.ranks is None else LeadingStage), False
    if place.sums:
        from octavo.backends.native.ranks.sums import LeadingSummingBackend, SummingBackend

        if place.rank > 0:
            return SummingBackend, False
        if place.machine is None:
            return LeadingSummingBackend, True
        from octavo.backends.native.ranks.nodes import FirstNode, FurtherNode

        return (FurtherNode, False) if place.machine.node > 0 else (FirstNode, True)
    from octavo.backends.native.ranks.messages import LeadingBackend

    return (LeadingBackend, True) if place.rank == 0 else (NativeBackend, False)


def _has_own_cache(place: RankPlace | StagePlace | None) -> bool:
    """Return whether a process makes a KV cache: ranks that divide panels have one together.

    The others must not touch that one while it is in use.
    """
    from octavo.distributed.context import StagePlace

    if place is None:
        return True
    return place.leads if isinstance(place, StagePlace) else place.rank == 0 or place.sums


def _owners(settings: BackendSettings, place: RankPlace | StagePlace | None) -> ExpertOwners | None:
    """Return who has which experts as a whole; None: each rank has a share of every one."""
    from octavo.backends.native.packing import ExpertOwners
    from octavo.distributed.context import StagePlace

    if isinstance(place, StagePlace):
        place = place.ranks
    if not settings.enable_expert_parallel or place is None:
        return None
    config = settings.eplb_config if settings.enable_eplb else None
    if config is None:
        return ExpertOwners(place.rank, place.ranks)
    copies = config.num_redundant_experts, config.step_interval
    return ExpertOwners(place.rank, place.ranks, *copies)


def _share(place: RankPlace | StagePlace | None, owners: ExpertOwners | None) -> str:
    """Return what a process has of the weights, in words; empty: all."""
    from octavo.distributed.context import RankPlace

    if not isinstance(place, RankPlace):
        return ""
    return f"{place.name} of {place.ranks}{', whole experts' if owners is not None else ''}"


def _check_activations(weights: str, activations: str) -> None:
    """Refuse activations that the format to which floats are converted has no products with."""
    takes = "int8" if weights.startswith("int") else "bf16"
    if weights != "auto" and activations not in ("auto", takes):
        others = {"int8": "fp8 or nf4", "bf16": "int8 or int4"}[takes]
        raise ValueError(
            f"cpu_activations={activations!r} contradicts cpu_weights={weights!r}, whose "
            f"activations are {takes}; leave one of them out, or choose weights of {others}"
        )


def _check_kernels(num_threads: int, instruction_set: str, order: str) -> None:
    """Raise ValueError for settings and variables that no kernels can follow here."""
    from octavo.backends.native.tiers import check_threads, choose_tier

    if num_threads:
        check_threads(num_threads, "num_threads")
    else:
        check_threads(env.cpu_threads(), env.CPU_THREADS)
    if instruction_set:
        choose_tier(instruction_set, order)
    else:
        choose_tier(env.cpu_instruction_set(), order, asked_by=env.CPU_ISA)
    env.measures_kernels()  # refuses another value than on or off


def _measured_file() -> Path | None:
    """Return where this machine's measurements of kernels are kept, or None to make none."""
    return env.measured_kernels_file() if env.measures_kernels() else None


def _measured_kernels() -> list[str]:
    """Describe which kernels the measurements of this machine have chosen, with the figures."""
    from octavo.backends.native.measured_file import MeasuredFile, machine_key

    if env.cpu_instruction_set():
        return [f"{env.cpu_instruction_set()} for everything, by OCTAVO_CPU_ISA"]
    if not env.measures_kernels():
        return ["the best instruction set for everything, by OCTAVO_CPU_CALIBRATION=off"]
    file = MeasuredFile(env.measured_kernels_file(), machine_key(), is_kept=False)
    if file.order is None and not file.all_products():
        return ["not measured yet: the first engine that starts here does it"]
    return file.describe()


KIND = NativeKind()
