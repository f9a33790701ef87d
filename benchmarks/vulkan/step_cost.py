"""The launches, bytes and times of SmolLM2's steps on a Vulkan device, as JSON.

    .ci/vulkan-run .venv/bin/python -m benchmarks.vulkan.step_cost [--steps 16]

On lavapipe, whose device is the processor, times are no prediction for any card. What they show is
the host's part: the time in which Python and wgpu submit a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.vulkan.device import Device
from benchmarks.vulkan.probe import Probe
from benchmarks.vulkan.rounded import RoundedMaker
from benchmarks.vulkan.step import Limits
from octavo.backends.step import LAST_SAMPLE, HostBatch
from octavo.loader import resolve
from octavo.models.build import bind
from octavo.models.kv_layout import place_layers
from octavo.models.load import open_model
from octavo.observe.machine import processor

LIMITS = Limits(rows=16, sequences=1, positions=512)
BLOCK_SIZE, NUM_BLOCKS = 16, 33
PROMPT = [504, 3575, 282, 4649, 314]
SHOWN_LIMITS = (
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-storage-buffers-per-shader-stage",
    "max-immediate-size",
)
SHOWN_FEATURES = ("shader-f16", "shader-f64", "shader-int64", "subgroup", "timestamp-query")


def measure(*, is_rounded: bool, steps: int) -> dict[str, Any]:
    """Run a prompt and then steps of one row; return counts, bytes and medians of times."""
    device = Device()
    opened = open_model(resolve("smollm2"))
    probe, layout = Probe(device, LIMITS), place_layers(opened.model)
    bind(opened.model, RoundedMaker(probe) if is_rounded else probe, opened.weights)
    began = time.perf_counter()
    probe.prepare(opened.model, layout, BLOCK_SIZE)
    probe.make_cache(NUM_BLOCKS)
    emitted = time.perf_counter() - began
    began = time.perf_counter()
    probe.submit(_step(PROMPT, 0)).tokens()
    first = time.perf_counter() - began
    submits, wholes = [], []
    for number in range(steps):
        batch = _step([LAST_SAMPLE], len(PROMPT) + number)
        began = time.perf_counter()
        drawn = probe.submit(batch)
        submits.append(time.perf_counter() - began)
        drawn.tokens()
        wholes.append(time.perf_counter() - began)
    return {
        "device": device.name,
        "processor": processor()[0],
        "limits": {key: device.adapter.limits[key] for key in SHOWN_LIMITS},
        "features": [key for key in SHOWN_FEATURES if key in device.adapter.features],
        "shaders": device.num_shaders,
        "launches": dict(Counter(launch.name for launch in probe.launches)),
        "launches_in_all": len(probe.launches),
        "weight_bytes": probe.weight_bytes,
        "device_bytes": device.memory_bytes,
        "step_words": probe.form.words,
        "emit_seconds": round(emitted, 3),
        "first_step_seconds": round(first, 3),
        "submit_ms": _median(submits),
        "step_ms": _median(wholes),
        "by_shader_ms": by_shader(probe, _step([LAST_SAMPLE], len(PROMPT) + steps), steps),
    }


def by_shader(probe: Probe, batch: HostBatch, steps: int) -> dict[str, float]:
    """Return the time of a step's launches of each shader alone."""
    sizes = probe.form.write(batch)[1]
    found = {}
    for name in dict.fromkeys(launch.name for launch in probe.launches):
        own = [launch for launch in probe.launches if launch.name == name]
        times = []
        for _ in range(max(3, steps // 4)):
            began = time.perf_counter()
            reading = probe.device.submit(own, sizes, (probe.cells[0], 1))
            assert reading is not None
            reading.words()
            times.append(time.perf_counter() - began)
        found[name] = _median(times)
    return found


def _median(seconds: Sequence[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)


def _step(tokens: Sequence[int], start: int) -> HostBatch:
    rows = np.arange(len(tokens), dtype=np.int32)
    return HostBatch(
        np.array(tokens, np.int32),
        rows + np.int32(start),
        np.array([0, len(tokens)], np.int32),
        (np.arange(1, NUM_BLOCKS, dtype=np.int32)[None],),
        rows[-1:],
    )


def main() -> None:
    """Measure both forms of the weights, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16)
    steps = parser.parse_args().steps
    found = {
        name: measure(is_rounded=is_rounded, steps=steps)
        for name, is_rounded in (("Q4_1 and Q8_0", False), ("bfloat16", True))
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
