"""Reads what this machine offers a process: cores, memory, instruction sets, limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

ROOT = Path("/")
# Instruction sets that kernels use, by the CPU flags of the operating system.
INSTRUCTION_SETS = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16",
    "avx_vnni": "AVX VNNI",
    "amx_tile": "AMX",
    "amx_bf16": "AMX BF16",
    "amx_int8": "AMX INT8",
    "asimd": "NEON",
    "asimddp": "NEON dot product",
    "i8mm": "I8MM",
    "bf16": "BF16",
    "sve": "SVE",
}
# Processors that Linux names by two numbers alone: who made them, and which part it is.
ARM_PARTS = {
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
_MOST_LEVELS = 32  # of nested control groups
# A control group's files, version 2 and 1: its limit, its use, and the prefix of its statistics.
_MEMORY_FILES_2 = ("memory.max", "memory.current", "")
_MEMORY_FILES_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_PROCESS_LIMITS = {"Max address space": "VmSize", "Max data size": "VmData"}

_REMEDIES = {
    "": "free some",
    "ulimit": "raise that limit (ulimit -v or -d, LimitAS of systemd)",
    "the container": "raise the container's limit",
}


class Memory(Struct, frozen=True):
    """Memory in bytes: the machine's, or that of the strictest limit of this process."""

    total: int
    available: int  # without swapping
    limited_by: str  # "the container" (a control group) or "ulimit"; empty: by the machine alone

    @property
    def remedy(self) -> str:
        """The advice of an error if that is too little: freeing memory raises no limit."""
        return _REMEDIES[self.limited_by]


def memory(root: Path = ROOT) -> Memory:
    """Return the memory that this process may use."""
    fields = _fields(root / "proc/meminfo")
    page = os.sysconf("SC_PAGE_SIZE")
    total = fields.get("MemTotal", 0) * 1024 or page * os.sysconf("SC_PHYS_PAGES")
    available = fields.get("MemAvailable", -1) * 1024
    if available < 0:
        available = total // 2
    limited_by = ""
    for name, limit, used in (*_group_limits(root), *_process_limits(root)):
        available = min(available, max(limit - used, 0))
        if limit < total:
            total, limited_by = limit, name
    return Memory(total, available, limited_by)


def _group_limits(root: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the limit and the use of each control group, of version 2 and of version 1."""
    found = [(group, *_MEMORY_FILES_2) for group in _control_groups(root)]
    found += [(group, *_MEMORY_FILES_1) for group in _old_memory_groups(root)]
    for group, limit_file, used_file, prefix in found:
        limit = _number(group / limit_file)
        if limit is None:
            continue
        used = _number(group / used_file) or 0
        # Pages of files can be dropped, the active ones too: a checkpoint that was read twice.
        fields = _fields(group / "memory.stat", separator=" ")
        cached = fields.get(f"{prefix}inactive_file", 0) + fields.get(f"{prefix}active_file", 0)
        yield "the container", limit, max(used - cached, 0)


def _process_limits(root: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the limits of this process's address space and data (`ulimit -v`, `ulimit -d`)."""
    used = _fields(root / "proc/self/status")
    for line in _text(root / "proc/self/limits").splitlines():
        for name, field in _PROCESS_LIMITS.items():
            words = line.removeprefix(name).split()
            if line.startswith(name) and words and words[0].isdigit():
                yield "ulimit", int(words[0]), used.get(field, 0) * 1024


def num_killed_for_memory(root: Path = ROOT) -> int:
    """Return how many processes the kernel has killed because memory ran out, in any container."""
    return _fields(root / "proc/vmstat", separator=" ").get("oom_kill", 0)


def num_cores(root: Path = ROOT) -> tuple[int, float | None]:
    """Return the cores that this process may run on, and a container's limit in cores."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = []
    for group in _control_groups(root):
        words = _text(group / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return allowed or 1, min(quotas, default=None)


def processor(root: Path = ROOT) -> tuple[str, list[str]]:
    """Return the CPU's name and those of its instruction sets that kernels use.

    Virtual machines give processors of several generations one name, such as "AMD EPYC", so that
    the name ends with the family and the model where there are any.
    """
    first: dict[str, str] = {}
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip().lower(), value.strip())
    name = first.get("model name", "")
    if not name and "cpu part" in first:
        numbers = first.get("cpu implementer", ""), first["cpu part"]
        name = ARM_PARTS.get(numbers, " ".join(("ARM", *numbers)))
    if name and first.get("cpu family") and first.get("model"):
        name += f" (family {first['cpu family']}, model {first['model']})"
    present = frozenset(first.get("flags", first.get("features", "")).split())
    return name, [known for flag, known in INSTRUCTION_SETS.items() if flag in present]


def microcode(root: Path = ROOT) -> str:
    """Return the version of the processor's microcode, or "" if it is unknown."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() == "microcode":
            return value.strip()
    return ""


def huge_pages(root: Path = ROOT) -> str:
    """Return the mode of transparent huge pages: `always`, `madvise`, `never`, or "" if unknown."""
    text = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    return text.partition("[")[2].partition("]")[0]


def huge_page_bytes(root: Path = ROOT) -> int | None:
    """Return how much of this process's own memory is in huge pages, or None if unknown."""
    size = _fields(root / "proc/self/smaps_rollup").get("AnonHugePages")
    return None if size is None else size * 1024


def own_bytes() -> int:
    """Return the resident memory of this process without mapped files."""
    return _fields(ROOT / "proc/self/status").get("RssAnon", 0) * 1024


def resident_bytes() -> int:
    """Return the resident memory of this process, mapped files included."""
    return _fields(ROOT / "proc/self/status").get("VmRSS", 0) * 1024


def virtual_bytes() -> int:
    """Return the size of this process's address space."""
    return _fields(ROOT / "proc/self/status").get("VmSize", 0) * 1024


def child_bytes(modules: Mapping[str, str], root: Path = ROOT) -> dict[str, int]:
    """Return the resident memory of this process's children, added up by what they run.

    `modules` has a name for each Python module that children run; others are not counted.
    """
    found = dict.fromkeys(modules.values(), 0)
    for task in _children_files(root):
        for number in _text(task).split():
            words = _text(root / "proc" / number / "cmdline").split("\0")
            kind = next((modules[word] for word in words if word in modules), None)
            if kind is not None:
                found[kind] += _fields(root / "proc" / number / "status").get("VmRSS", 0) * 1024
    return found


def _children_files(root: Path) -> list[Path]:
    """Return the files that list the children of each of this process's threads."""
    try:
        return [each / "children" for each in (root / "proc/self/task").iterdir()]
    except OSError:
        return []


def peak_bytes() -> int:
    """Return the largest resident memory of this process, since its start or `forget_peak`."""
    return _fields(ROOT / "proc/self/status").get("VmHWM", 0) * 1024


def forget_peak() -> None:
    """Make the present resident memory the peak, where the system can."""
    with contextlib.suppress(OSError):
        (ROOT / "proc/self/clear_refs").write_text("5", "ascii")


def num_open_files() -> int:
    """Return the number of file descriptors that this process has open."""
    try:
        return len(os.listdir(ROOT / "proc/self/fd"))
    except OSError:
        return 0


def max_open_files() -> int:
    """Return the number of file descriptors that this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def process_age() -> float | None:
    """Return the seconds since this process was started, or None if the system does not say."""
    uptime = _text(ROOT / "proc/uptime").split()
    started = _started_after_boot()
    return None if started is None or not uptime else float(uptime[0]) - started


def process_start() -> float:
    """Return when this process was started, in seconds since 1970; 0 if that is unknown."""
    booted = _fields(ROOT / "proc/stat", separator=" ").get("btime", 0)
    return booted + (_started_after_boot() or 0.0)


def _started_after_boot() -> float | None:
    # The name of the program, in parentheses, may contain spaces.
    words = _text(ROOT / "proc/self/stat").rpartition(")")[2].split()
    return int(words[19]) / os.sysconf("SC_CLK_TCK") if len(words) >= 20 else None


def give_back_freed() -> None:
    """Return freed memory to the system, with glibc; with other C libraries do nothing.

    Loading a model frees large blocks at once, which no later allocation would reuse.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return
    trim(0)


def _control_groups(root: Path) -> list[Path]:
    """Return this process's control groups (version 2), the innermost first."""
    return _groups(root, "", root / "sys/fs/cgroup")


def _old_memory_groups(root: Path) -> list[Path]:
    """Return this process's control groups of memory (version 1), the innermost first."""
    return _groups(root, "memory", root / "sys/fs/cgroup/memory")


def _groups(root: Path, controller: str, top: Path) -> list[Path]:
    """Return the groups of the hierarchy with this controller; that of version 2 names none."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        words = line.split(":", 2)
        if len(words) < 3 or controller not in words[1].split(","):
            continue
        path = top / words[2].lstrip("/")
        inside = [path, *path.parents][:_MOST_LEVELS]
        return [each for each in inside if each == top or top in each.parents]
    return []


def _fields(path: Path, separator: str = ":") -> dict[str, int]:
    """Read lines such as `Name: 123 kB` as numbers."""
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(separator)
        words = value.split()
        if words and words[0].isdigit():
            found[name.strip()] = int(words[0])
    return found


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
