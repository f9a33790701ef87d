"""A Vulkan device through wgpu: guarded memory, shaders, and launches in one submission."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import wgpu
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Groups = tuple[int, int, int]

# Fresh memory, and the words behind each array: a NaN as float32, and in both halves of the word as
# bfloat16 and float16; as an index larger than every array.
UNWRITTEN = 0x7FC07FC0
GUARD_WORDS = 64
MOST_GROUPS = 65535  # of a dispatch in one direction, on any device
# What WebGPU promises everywhere, of what shaders here use; a device may have more.
PROMISED = {
    "max-storage-buffer-binding-size": 128 << 20,
    "max-buffer-size": 256 << 20,
    "max-compute-workgroup-storage-size": 16 << 10,
    "max-compute-invocations-per-workgroup": 256,
    "max-storage-buffers-per-shader-stage": 8,
}
_BINDING = re.compile(r"@binding\((\d+)\)\s+var<storage, (read_write|read)>")


class NoDeviceError(RuntimeError):
    """The absence of a Vulkan device."""


class Memory(NamedTuple):
    """An array of words on the device, with a guard behind it."""

    buffer: Any
    words: int


class Shader(NamedTuple):
    """A compiled shader and the layout of what it reads and writes."""

    pipeline: Any
    layout: Any


class Launch(NamedTuple):
    """A shader with its memory; `groups` has the number of workgroups of a step."""

    name: str
    shader: Shader
    bindings: Any
    groups: Callable[[Any], Groups]


class Reading:
    """Words that a submission copies for the host, which may wait for them later."""

    def __init__(self, buffer: Any, words: int) -> None:
        self._buffer = buffer
        self._words = words

    def words(self) -> Words:
        """Wait for the submission, and return the words."""
        self._buffer.map_sync(wgpu.MapMode.READ)
        found = np.frombuffer(self._buffer.read_mapped(), np.uint32, self._words).copy()
        self._buffer.unmap()
        self._buffer.destroy()
        return found


class Device:
    """A Vulkan device within the limits that WebGPU promises everywhere."""

    def __init__(self) -> None:
        adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if _is_vulkan(a)]
        if not adapters:
            raise NoDeviceError("there is no Vulkan device; make test-vulkan fetches a driver")
        self.adapter = adapters[0]
        self._device = self.adapter.request_device_sync(required_limits=PROMISED)
        self._shaders: dict[str, Shader] = {}
        self._memories: list[Memory] = []
        self.memory_bytes = 0

    @property
    def name(self) -> str:
        """The names of the device and of its driver."""
        info = self.adapter.info
        return f"{info['device']}, {info['description']}"

    @property
    def num_shaders(self) -> int:
        """The number of shaders that have been compiled."""
        return len(self._shaders)

    @property
    def most_words(self) -> int:
        """The words of the largest array that a shader can be given."""
        most: int = self._device.limits["max-storage-buffer-binding-size"]
        return most // 4 - GUARD_WORDS

    def memory(self, words: int, content: Words | None = None) -> Memory:
        """Make an array of words: of this content, or unwritten."""
        words = max(words, 1)
        if words > self.most_words:
            raise ValueError(
                f"an array of {words:,} words; shaders get {self.most_words:,} at most"
            )
        usage = wgpu.BufferUsage
        buffer = self._device.create_buffer(
            size=4 * (words + GUARD_WORDS),
            usage=usage.STORAGE | usage.COPY_DST | usage.COPY_SRC,
        )
        made = Memory(buffer, words)
        self._memories.append(made)
        self.memory_bytes += buffer.size
        self.clear(made)
        if content is not None:
            self.write(made, content)
        return made

    def clear(self, memory: Memory) -> None:
        """Make an array unwritten again, with its guard."""
        whole = np.full(memory.words + GUARD_WORDS, UNWRITTEN, np.uint32)
        self._device.queue.write_buffer(memory.buffer, 0, whole)

    def write(self, memory: Memory, content: Words) -> None:
        """Write the first words of an array, in order with submissions."""
        if content.size > memory.words:
            raise ValueError(f"{content.size} words do not fit into {memory.words}")
        if content.size:
            self._device.queue.write_buffer(memory.buffer, 0, np.ascontiguousarray(content))

    def read(self, memory: Memory, words: int | None = None) -> Words:
        """Wait for all submissions, and return the first words of an array."""
        count = memory.words if words is None else words
        if not count:
            return np.zeros(0, np.uint32)
        found = self._device.queue.read_buffer(memory.buffer, 0, 4 * count)
        return np.frombuffer(found, np.uint32).copy()

    def touched_guards(self) -> int:
        """Return how many arrays have been written behind their end."""
        touched = 0
        for memory in self._memories:
            guard = self._device.queue.read_buffer(memory.buffer, 4 * memory.words)
            touched += bool((np.frombuffer(guard, np.uint32) != UNWRITTEN).any())
        return touched

    def free(self) -> None:
        """Free all memory; what was launched with it is void."""
        for memory in self._memories:
            memory.buffer.destroy()
        self._memories.clear()
        self.memory_bytes = 0

    def shader(self, source: str) -> Shader:
        """Compile a shader, unless the same source has been compiled before."""
        if source not in self._shaders:
            layout = self._device.create_bind_group_layout(
                entries=[
                    {
                        "binding": int(number),
                        "visibility": wgpu.ShaderStage.COMPUTE,
                        "buffer": {
                            "type": "storage" if access == "read_write" else "read-only-storage"
                        },
                    }
                    for number, access in _BINDING.findall(source)
                ]
            )
            pipeline = self._device.create_compute_pipeline(
                layout=self._device.create_pipeline_layout(bind_group_layouts=[layout]),
                compute={
                    "module": self._device.create_shader_module(code=source),
                    "entry_point": "main",
                },
            )
            self._shaders[source] = Shader(pipeline, layout)
        return self._shaders[source]

    def launch(
        self,
        name: str,
        source: str,
        memories: Sequence[Memory],
        groups: Callable[[Any], Groups],
    ) -> Launch:
        """Make a launch of a shader with memory for its bindings, in their order."""
        shader = self.shader(source)
        bindings = self._device.create_bind_group(
            layout=shader.layout,
            entries=[
                {"binding": number, "resource": {"buffer": memory.buffer}}
                for number, memory in enumerate(memories)
            ],
        )
        return Launch(name, shader, bindings, groups)

    def submit(
        self, launches: Iterable[Launch], sizes: Any, wanted: tuple[Memory, int] | None = None
    ) -> Reading | None:
        """Submit launches in their order, and a copy of what the host wants to read."""
        encoder = self._device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for launch in launches:
            groups = launch.groups(sizes)
            if 0 in groups:
                continue
            compute.set_pipeline(launch.shader.pipeline)
            compute.set_bind_group(0, launch.bindings)
            compute.dispatch_workgroups(*groups)
        compute.end()
        reading = None
        if wanted is not None and wanted[1]:
            memory, words = wanted
            usage = wgpu.BufferUsage
            copy = self._device.create_buffer(size=4 * words, usage=usage.MAP_READ | usage.COPY_DST)
            encoder.copy_buffer_to_buffer(memory.buffer, 0, copy, 0, 4 * words)
            reading = Reading(copy, words)
        self._device.queue.submit([encoder.finish()])
        return reading


def _is_vulkan(adapter: Any) -> bool:
    return bool(adapter.info["backend_type"] == "Vulkan")
