"""What the system reports is read correctly, including the limits of containers."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from octavo.observe import machine

MEMINFO = "MemTotal: 16000 kB\nMemFree: 1000 kB\nMemAvailable: 8000 kB\n"
# The first core is taken for all.
CPU_INFO = """model name\t: A CPU
flags\t: sse avx2 avx512f avx512_vnni x
model name\t: Other
flags\t: amx_tile
"""

ARM_INFO = """processor	: 0
Features	: fp asimd asimddp i8mm bf16
CPU implementer	: 0x41
CPU part	: 0xd40
"""
ARM_SETS = ["NEON", "NEON dot product", "I8MM", "BF16"]


def make_root(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def test_memory_without_a_container(tmp_path: Path) -> None:
    root = make_root(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/\n"})
    assert machine.memory(root) == machine.Memory(16000 * 1024, 8000 * 1024, "")


def test_the_limit_of_an_outer_container_counts(tmp_path: Path) -> None:
    """Cached files count as available, since the kernel can drop them."""
    group = "sys/fs/cgroup/outer"
    root = make_root(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "1:cpu:/old\n0::/outer/inner\n",
            f"{group}/memory.max": str(5000 * 1024),
            f"{group}/memory.current": str(3000 * 1024),
            f"{group}/memory.stat": f"active_file {400 * 1024}\ninactive_file {600 * 1024}\n",
            f"{group}/inner/memory.max": "max\n",
            f"{group}/inner/cpu.max": "max 100000\n",
            f"{group}/cpu.max": "150000 100000\n",
        },
    )
    assert machine.memory(root) == machine.Memory(5000 * 1024, 3000 * 1024, "the container")
    assert machine.num_cores(root) == (len(os.sched_getaffinity(0)), 1.5)


def test_the_limit_of_a_container_of_the_older_kind_counts(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/1"
    root = make_root(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "4:cpu,memory:/docker/1\n1:name=systemd:/\n0::/\n",
            f"{group}/memory.limit_in_bytes": str(5000 * 1024),
            f"{group}/memory.usage_in_bytes": str(3000 * 1024),
            f"{group}/memory.stat": f"inactive_file 1\ntotal_inactive_file {1000 * 1024}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str((1 << 63) - 4096),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(9000 * 1024),
        },
    )
    assert machine.memory(root) == machine.Memory(5000 * 1024, 3000 * 1024, "the container")


@pytest.mark.parametrize("name", ["Max address space", "Max data size"])
def test_the_limits_of_ulimit_count(tmp_path: Path, name: str) -> None:
    limits = "Limit                     Soft Limit           Hard Limit           Units     \n"
    limits += "Max cpu time              unlimited            unlimited            seconds   \n"
    limits += f"{name:<26}{4000 * 1024:<21}{9000 * 1024:<21}bytes     \n"
    root = make_root(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/limits": limits,
            "proc/self/status": "VmSize:\t3000 kB\nVmData:\t3000 kB\n",
        },
    )
    assert machine.memory(root) == machine.Memory(4000 * 1024, 1000 * 1024, "ulimit")


def test_processes_that_were_killed_for_memory_are_counted(tmp_path: Path) -> None:
    root = make_root(tmp_path, {"proc/vmstat": "nr_free_pages 1\noom_kill 3\n"})
    assert machine.num_killed_for_memory(root) == 3
    assert machine.num_killed_for_memory(tmp_path / "none") == 0


def test_a_full_container_has_nothing_left(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "4096",
            "sys/fs/cgroup/memory.current": "9999",
        },
    )
    assert machine.memory(root).available == 0


def test_a_limit_above_the_machines_memory_is_none(tmp_path: Path) -> None:
    root = make_root(
        tmp_path,
        {
            "proc/meminfo": MEMINFO,
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(1 << 50),
            "sys/fs/cgroup/memory.current": "1",
        },
    )
    assert not machine.memory(root).limited_by


def test_a_system_without_proc(tmp_path: Path) -> None:
    found = machine.memory(tmp_path)
    assert 0 < found.available < found.total
    assert machine.processor(tmp_path) == ("", [])
    assert machine.huge_pages(tmp_path) == ""
    assert machine.num_cores(tmp_path)[1] is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            CPU_INFO,
            ("A CPU", ["AVX2", "AVX-512", "AVX-512 VNNI"]),
        ),
        (
            "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nflags\t\t: avx2\n",
            ("AMD EPYC (family 26, model 2)", ["AVX2"]),
        ),
        ("Features\t: fp asimd asimddp\n", ("", ["NEON", "NEON dot product"])),
        (ARM_INFO, ("Neoverse V1", ARM_SETS)),
        (ARM_INFO.replace("0xd40", "0xfff"), ("ARM 0x41 0xfff", ARM_SETS)),
    ],
)
def test_instruction_sets(tmp_path: Path, text: str, expected: tuple[str, list[str]]) -> None:
    assert machine.processor(make_root(tmp_path, {"proc/cpuinfo": text})) == expected


def test_microcode(tmp_path: Path) -> None:
    text = "processor: 0\nmicrocode\t: 0xa101148\nprocessor: 1\nmicrocode\t: 0x2\n"
    assert machine.microcode(make_root(tmp_path, {"proc/cpuinfo": text})) == "0xa101148"
    assert machine.microcode(tmp_path / "nowhere") == ""


def test_huge_pages(tmp_path: Path) -> None:
    name = "sys/kernel/mm/transparent_hugepage/enabled"
    assert machine.huge_pages(make_root(tmp_path, {name: "always [madvise] never\n"})) == "madvise"


def test_the_memory_in_huge_pages(tmp_path: Path) -> None:
    text = "1000-2000 ---p 00000000 00:00 0    [rollup]\nRss: 9 kB\nAnonHugePages:  4096 kB\n"
    root = make_root(tmp_path, {"proc/self/smaps_rollup": text})
    assert machine.huge_page_bytes(root) == 4 << 20
    assert machine.huge_page_bytes(tmp_path / "none") is None


def test_this_process() -> None:
    gc.collect()  # so that what other tests left is not freed meanwhile
    machine.give_back_freed()  # or the allocation below may reuse freed memory
    before = machine.own_bytes()
    held = bytearray(b"x" * (64 << 20))
    assert before > 0
    assert machine.own_bytes() - before > 60 << 20
    assert len(held) == 64 << 20
    assert machine.resident_bytes() >= machine.own_bytes()
    assert machine.num_open_files() >= 3
    age = machine.process_age()
    assert age is not None
    assert age >= 0
    machine.give_back_freed()


def test_the_memory_of_children_is_added_up_by_what_they_run(tmp_path: Path) -> None:
    files = {"proc/self/task/1/children": "10 11 12 ", "proc/self/task/2/children": "13 14"}
    programs = ("a.engine", "a.worker", "a.worker", "a.other", "")
    for number, module in enumerate(programs, 10):
        words = ["python", "-m", module, "--socket", "x"] if module else []
        files[f"proc/{number}/cmdline"] = "\0".join(words)
        files[f"proc/{number}/status"] = f"VmSize: 9000 kB\nVmRSS: {number} kB\n"
    root = make_root(tmp_path, files)
    modules = {"a.engine": "engine", "a.worker": "worker", "a.none": "none"}
    sizes = machine.child_bytes(modules, root)
    assert sizes == {"engine": 10 << 10, "worker": (11 + 12) << 10, "none": 0}
    assert machine.child_bytes(modules, tmp_path / "none") == dict.fromkeys(sizes, 0)


@pytest.mark.parametrize(
    ("limited_by", "advice"),
    [("", "free some"), ("ulimit", "ulimit -v"), ("the container", "the container's limit")],
)
def test_the_advice_concerns_what_limits_the_memory(limited_by: str, advice: str) -> None:
    assert advice in machine.Memory(2, 1, limited_by).remedy
