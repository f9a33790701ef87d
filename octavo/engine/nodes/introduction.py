"""The first message of a node to the first one: who it is, or why it can have no place."""

from __future__ import annotations

import platform
import re
from contextlib import suppress

from octavo.core.config import ConfigError
from octavo.engine.nodes.division import CONTROL, Division
from octavo.engine.nodes.group import secret_of, setting_without_model
from octavo.engine.nodes.joining import say_failure
from octavo.engine.nodes.messages import Join, Setting
from octavo.engine.ranks.link import MOST_REASON
from octavo.options.engine import EngineArguments
from octavo.options.processes.machines import host_of


def introduction(
    own: EngineArguments,
    setting: Setting,
    node: bytes,
    member: int,
    channel: str = CONTROL,
    *,
    ended: str = "",
    failure: str = "",
) -> Join:
    """Return the first message over a connection of a member of this node."""
    machine = re.sub(r"[^\w.-]", "_", platform.node())[:64]
    return Join(setting, own.node_rank, node, member, channel, machine, ended, failure)


def report_failure(own: EngineArguments, failure: str) -> None:
    """Send the first node why this one can have no place, if it listens; it may not be there."""
    member = Division.of(own).members(own.node_rank)[0]
    setting = setting_without_model(own)
    message = introduction(own, setting, b"", member, failure=failure[:MOST_REASON])
    with suppress(ConfigError):  # of the secret, as the program of this node says
        say_failure(host_of(own.master_addr), own.master_port, secret_of(own), message)
