"""The messages between nodes, and between a node's program and its members, before steps come."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from octavo.engine.nodes.division import Division
from octavo.engine.ranks.link import MOST_REASON

_Text = Annotated[str, Meta(max_length=MOST_REASON)]
_Name = Annotated[str, Meta(max_length=64, pattern=r"\A[\w.-]*\Z")]


class Setting(Struct, frozen=True):
    """The facts that all nodes of an engine must agree on."""

    version: _Text
    nnodes: int
    stages: int
    digest: Annotated[bytes, Meta(max_length=64)]  # of the model
    ranks: int = 0  # that add up; 0: stages are divided

    @property
    def division(self) -> Division:
        """The stages or ranks that the nodes divide."""
        return Division(self.nnodes, self.stages, self.ranks)

    def difference_from(self, first: Setting) -> str:
        """Return what is wrong with this node for the first one; empty if nothing is."""
        for name, value, right in (
            ("version of Octavo", self.version, first.version),
            ("--nnodes", self.nnodes, first.nnodes),
            ("--pipeline-parallel-size", self.stages, first.stages),
            ("number of ranks that add up", self.ranks, first.ranks),
        ):
            if value != right:
                return f"its {name} is {value}, and the first node's is {right}"
        if self.digest != first.digest:
            return "its model is another one, or its files differ from the first node's"
        return ""


class Join(Struct, frozen=True):
    """The first message of a node: which connection this is to be."""

    setting: Setting
    node_rank: int
    node: Annotated[bytes, Meta(max_length=64)]  # of this start of the node's program, random
    member: int  # among the processes of all nodes: the number of a stage, or of a node's ranks
    channel: _Text
    machine: _Name = ""  # which this is
    ended: _Text = ""  # of the process that was in this place before: which it was, and why
    failure: _Text = ""  # why this node can have no place: its own settings, or its model


class Joined(Struct, frozen=True):
    """The answer of the first node: none of these texts if the connection is taken."""

    refusal: _Text = ""  # which another attempt cannot change
    occupied: _Text = ""  # another node is in its place, which may be about to end


class StartNode(Struct, frozen=True):
    """The message with which the program of a node starts one of its members."""

    arguments: Raw  # of type EngineArguments, as this node was given them
    member: int
    node: bytes
    log_level: int
    ended: str = ""  # as in Join
