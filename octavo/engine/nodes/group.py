"""The stages of an engine on several machines: those of other nodes join, and end with it."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from msgspec import structs

from octavo.backends.base import Backend
from octavo.backends.kind import WeightFile
from octavo.backends.native import _native
from octavo.backends.native.stages.backend import FirstStage
from octavo.core.config import ConfigError
from octavo.engine.nodes.connection import CUT_SECONDS, SealedLink
from octavo.engine.nodes.division import CONTROL, STEPS, Division
from octavo.engine.nodes.messages import Setting
from octavo.engine.nodes.model_digest import digest_of
from octavo.engine.nodes.reception import Reception
from octavo.engine.nodes.signs import wait_for_silence
from octavo.engine.ranks.followers import Follower
from octavo.engine.ranks.link import StartRank
from octavo.engine.stages.group import StageGroup, stages_on_machine
from octavo.loader import ModelFiles
from octavo.models.load import configurations
from octavo.options.engine import EngineArguments
from octavo.options.processes.machines import host_of
from octavo.resolve import EngineConfig
from octavo.wire.link import SecretError, read_secret


def setting_of(
    arguments: EngineArguments, source: ModelFiles, files: Sequence[WeightFile]
) -> Setting:
    """Return what all nodes must agree on."""
    digest = digest_of(configurations(source), [file.path for file in files])
    return structs.replace(setting_without_model(arguments), digest=digest)


def setting_without_model(arguments: EngineArguments) -> Setting:
    """Return what all nodes must agree on but the model."""
    division = Division.of(arguments)
    return Setting(_version(), division.nnodes, division.stages, b"", division.ranks)


def secret_of(arguments: EngineArguments) -> bytes:
    """Return the secret of all nodes; without one, that of this machine alone is empty."""
    if arguments.link_secret is not None:
        return arguments.link_secret
    file = arguments.link_secret_file
    try:
        return b"" if file is None else read_secret(Path(file))
    except SecretError as error:
        raise ConfigError(str(error)) from None


def _version() -> str:
    """Return the version of Octavo, and of the sources of what nodes send each other."""
    try:
        version = metadata.version("octavo")
    except metadata.PackageNotFoundError:
        version = "from its sources"
    return f"{version} ({_native.INTERFACE[:16]})"


def receive_members(
    arguments: EngineArguments, setting: Setting
) -> dict[tuple[int, str], SealedLink]:
    """Return the connections of the members of all other nodes, once all have joined."""
    where = host_of(arguments.master_addr), arguments.master_port
    reception = Reception(*where, secret_of(arguments), setting)
    try:
        return reception.wait()
    finally:
        reception.close()


class RemoteMember(Follower):
    """A member of another node: a stage, or the first of its ranks."""

    def __init__(self, division: Division, member: int, link: SealedLink) -> None:
        name, count = division.process_of(member)
        super().__init__(name, count, link)
        self.machine = f"{link.machine}: "
        self._control = link

    def start(self, message: StartRank) -> None:
        super().start(structs.replace(message, files=None))

    def wait_for_end(self) -> str:
        return wait_for_silence(self.link)

    def exit_reason(self) -> str:
        how = self._control.end_reason
        if os.strerror(errno.EAGAIN) in how:
            return f"it gave no sign of life for {CUT_SECONDS} s"
        return f"{how or super().exit_reason()}; the log of that node may say more"


class NodeGroup(StageGroup):
    """The further stages of an engine, those of other nodes among them."""

    def __init__(self, arguments: EngineArguments, setting: Setting) -> None:
        """Start the stages of this node, and wait until the other nodes have joined."""
        ranks = arguments.tensor_parallel_size
        super().__init__(arguments.pipeline_parallel_size, ranks, stages_on_machine(arguments))
        self._division = setting.division
        try:
            links = receive_members(arguments, setting)
            for stage in range(self._num_local, self.size):
                self._add_remote(stage, links[stage, CONTROL], links[stage, STEPS])
        except BaseException:
            self.close()
            raise

    def _add_remote(self, stage: int, control: SealedLink, steps: SealedLink) -> None:
        self._add_steps(steps.descriptor, steps.frames)
        steps.connection.close()
        self._descriptors.append(control.descriptor)
        self._stages.append(RemoteMember(self._division, stage, control))
        self._followers.append(self._stages[-1])

    def with_room(
        self, config: EngineConfig, backend: Backend, free_bytes: int
    ) -> tuple[EngineConfig, int]:
        """Return the settings and the free memory with which the KV cache fits in every node.

        All stages have the same number of pages, and each has a size of its own for them.
        """
        assert isinstance(backend, FirstStage)
        others = [each.started for each in self._stages]
        pages = [backend.page_bytes, *(each.page_bytes for each in others)]
        largest = max(
            sum(pages[at : at + self._num_local]) for at in range(0, self.size, self._num_local)
        )
        free_bytes = min(free_bytes, *(each.free_bytes for each in others[self._num_local - 1 :]))
        bill, core = structs.replace(config.bill, block_bytes=largest), config.core
        asked = config.arguments.kv_cache_memory_bytes
        if asked is not None and config.arguments.num_gpu_blocks_override is None:
            # What was estimated for a node with an equal part of the layers may be too many.
            fitting = max(asked // largest, len(bill.groups) + 1)
            core = replace(core, num_blocks=min(core.num_blocks, fitting))
        return structs.replace(config, bill=bill, core=core), free_bytes
