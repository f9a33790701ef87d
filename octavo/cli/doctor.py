"""The `doctor` command: what this machine offers, which backends work, what is missing.

The exit code is 1 if no model can run on this machine as it is.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import sys
from collections.abc import Callable
from pathlib import Path

from octavo.cli.output import size, table
from octavo.cli.parsing import Parser
from octavo.cli.version import version_of
from octavo.observe.finding import Finding

_LEAST_OPEN_FILES = 4096  # the server needs a socket for each client
_LEAST_MEMORY = 1 << 30
# Optional packages and their purposes.
_OPTIONAL = {
    "huggingface_hub": ("octavo[hub]", "fetching models from the Hugging Face hub"),
    "openai": ("openai", "trying the server from Python"),
}
_NEEDED = (
    "httptools",
    "jinja2",
    "llguidance",
    "ml_dtypes",
    "msgspec",
    "numpy",
    "tokenizers",
    "uvloop",
    "zmq",
)
_DISTRIBUTIONS = {"zmq": "pyzmq"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the report and return the exit code."""
    findings = [finding for check in CHECKS for finding in check()]
    code = 1 if any(each.is_fatal for each in findings) else 0
    if arguments.json:
        import json

        report = {"findings": [each._asdict() for each in findings], "verdict": verdict(findings)}
        sys.stdout.write(json.dumps(report, indent=1) + "\n")
        return code
    rows = []
    for each in findings:
        mark = "✗" if each.is_fatal else "!" if each.advice else "✓"
        rows.append((mark, each.what, each.found))
        if each.advice:
            rows.append(("", "", f"→ {each.advice}"))
    sys.stdout.write(f"{table(rows)}\n{verdict(findings)}\n")
    return code


def verdict(findings: list[Finding]) -> str:
    """Return a line that says whether models run here, and the first thing to do."""
    fatal = [each for each in findings if each.is_fatal]
    if fatal:
        return f"No model can run here yet: {fatal[0].what}: {fatal[0].advice}."
    advised = [each for each in findings if each.advice]
    if advised:
        return f"Models run here. {len(advised)} things could be better; see the arrows above."
    return "All is well; `octavo serve` serves a model."


def python() -> list[Finding]:
    version = version_of("octavo") or "run from its sources"
    return [
        Finding("octavo", version),
        Finding("Python", f"{platform.python_version()} at {sys.executable}"),
        Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
    ]


def processor() -> list[Finding]:
    from octavo.client.processors import cores as physical_cores
    from octavo.observe import machine

    allowed, quota = machine.num_cores()
    name, sets = machine.processor()
    cores = f"{allowed} allowed"
    if quota is not None and quota < allowed:
        cores += f", {quota:g} of them available by the container's quota"
    return [
        Finding("processor", name or "unknown"),
        Finding("cores", cores),
        Finding("engines with cores of their own", f"{len(physical_cores())} at most"),
        Finding("instruction sets", ", ".join(sets) or "none that Octavo has kernels for"),
    ]


def memory() -> list[Finding]:
    from octavo.observe import machine

    found = machine.memory()
    memory = f"{size(found.available)} free of {size(found.total)}"
    memory += f", limited by {found.limited_by}" if found.limited_by else ""
    advice = ""
    if found.available < _LEAST_MEMORY:
        advice = (
            "end other programs, or use a smaller model: `octavo fit MODEL` computes its memory"
        )
    pages = machine.huge_pages()
    slow = pages == "never"
    remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return [
        Finding("memory", memory, advice),
        Finding("huge pages", pages or "unknown", remedy if slow else ""),
        *_memory_nodes(),
    ]


def _memory_nodes() -> list[Finding]:
    """Describe a machine whose cores do not all reach all of its memory equally fast."""
    from octavo.observe.memory_nodes import memory_nodes

    nodes = [each.number for each in memory_nodes()]
    if len(nodes) < 2:
        return []
    advice = (
        "an engine reads fastest what is in the memory of its own cores: run one for each node, as "
        f"with `numactl --cpunodebind={nodes[0]} --membind={nodes[0]} octavo serve MODEL`, or one "
        f"with a rank on each: `octavo serve MODEL --tensor-parallel-size {len(nodes)}`"
    )
    return [Finding("memory nodes", ", ".join(map(str, nodes)), advice)]


def limits() -> list[Finding]:
    try:
        import resource
    except ImportError:  # not a Unix
        return []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = ""
    if 0 <= soft < _LEAST_OPEN_FILES:
        advice = (
            f"run `ulimit -n {_LEAST_OPEN_FILES}` before `octavo serve`, to serve as many clients"
        )
    return [Finding("open files", f"{soft:,} (at most {hard:,})", advice)]


def confinement() -> list[Finding]:
    from octavo.confine.filter import why_unavailable

    missing = why_unavailable()
    if missing is None:
        found = "the engine and the prompt workers give up files, network and other processes"
        return [Finding("confinement", found)]
    advice = "run Octavo as a user of its own, in a container without network"
    return [Finding("confinement", missing, advice)]


def packages() -> list[Finding]:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    findings = []
    if missing:
        names = " ".join(_DISTRIBUTIONS.get(name, name) for name in missing)
        findings.append(
            Finding("packages", f"without {', '.join(missing)}", f"pip install {names}", True)
        )
    else:
        findings.append(Finding("packages", "all required packages are installed"))
    for name, (requirement, purpose) in _OPTIONAL.items():
        version = version_of(name)
        found = version or f"not installed: pip install '{requirement}' for {purpose}"
        findings.append(Finding(name, found))
    return findings


def backends() -> list[Finding]:
    from octavo.backends.kind import kind_of
    from octavo.options.backends import BACKENDS

    entries = list({entry.name: entry for entry in reversed(BACKENDS)}.values())[::-1]
    kinds = [(entry, kind_of(entry)) for entry in entries]
    every = [(entry.name, kind, kind.caps(), entry.only_asked) for entry, kind in kinds]
    first = next((name for name, _, caps, only in every if not (caps.refusal or only)), None)
    findings, is_needed = [], True
    for name, kind, caps, only_asked in every:
        is_needed = is_needed and name != first and not only_asked
        if not caps.refusal:
            findings += kind.report()
        elif is_needed:
            is_fatal = first is None
            findings.append(Finding(f"{name} backend", caps.refusal, caps.remedy, is_fatal))
        else:
            findings.append(Finding(f"{name} backend", f"{caps.refusal}, and is not needed"))
    return findings


def caches() -> list[Finding]:
    from octavo import env
    from octavo.loader.inventory import bytes_under

    places = (
        ("model cache", env.cache_directory(), "set OCTAVO_CACHE to a directory you can write"),
        ("packed weights", env.packed_weights_directory(), ""),
        ("hub cache", env.hub_cache_directory(), ""),
    )
    findings = []
    for what, path, advice in places:
        is_bad = bool(advice) and not _is_writable(path)
        found = f"{path}, {size(bytes_under(path))}" if path.is_dir() else f"{path}, empty"
        found += ", cannot be written" if is_bad else ""
        findings.append(Finding(what, found, advice if is_bad else ""))
    return findings


def _is_writable(path: Path) -> bool:
    """Return whether files, or the directory itself, can be created there."""
    import os

    while not os.path.lexists(path):
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK)


CHECKS: tuple[Callable[[], list[Finding]], ...] = (
    python,
    processor,
    memory,
    limits,
    confinement,
    packages,
    backends,
    caches,
)
