"""Settings of engines on several machines: their links, and vLLM's for nodes of one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.config import ConfigError
from octavo.options.declare import option

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments

LOCAL_HOST = "127.0.0.1"
MOST_NODES = 64
MASTER_PORT = 29501  # vLLM's


def cpus_option() -> int:
    """Declare the processors of an engine on another machine."""
    return option(
        1, "the processors that Ray reserves for an engine, which uses all of its machine", "COUNT"
    )


def link_host_option() -> str:
    """Declare the address for engines on other machines."""
    return option(
        LOCAL_HOST, "the address of this machine to which engines on others connect", "HOST"
    )


def secret_option() -> str | None:
    """Declare the file of the secret."""
    return option(
        None,
        "a file with the secret of all machines, of 16 bytes or more, for links beyond this one",
        "FILE",
        read=str,  # since it crosses to other processes
    )


def nodes_option() -> int:
    """Declare the number of nodes."""
    return option(
        1,
        "machines among which the stages of an engine are divided, in equal parts; each runs "
        "octavo serve with its node_rank (docs/scale.md)",
        "COUNT",
        most=MOST_NODES,
    )


def node_rank_option() -> int:
    """Declare the number of this node."""
    return option(
        0,
        "which of the nodes this machine is; 0 has the server, the scheduler and the first stage",
        "NUMBER",
        least=0,
        most=MOST_NODES - 1,
    )


def master_option() -> str:
    """Declare the address of the first node."""
    return option(LOCAL_HOST, "the address of node 0, at which it listens for the others", "HOST")


def host_of(address: str) -> str:
    """Return an address as sockets take it: one of IPv6 may be in brackets, as in a URL."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def master_port_option() -> int:
    """Declare the port of the first node."""
    return option(
        MASTER_PORT, "the port of node 0 for the other nodes", "NUMBER", least=1, most=65535
    )


def headless_option() -> bool:
    """Declare whether there is a server on this node."""
    return option(
        False, "run the stages of a node that is not the first, without a server (octavo serve)"
    )


def check_nodes(arguments: EngineArguments) -> None:
    """Refuse numbers of nodes that do not fit the stages, and links without a secret."""
    from octavo.options.transport import is_loopback, is_unspecified

    nodes, rank = arguments.nnodes, arguments.node_rank
    stages, host = arguments.pipeline_parallel_size, arguments.master_addr
    if rank >= nodes:
        raise ConfigError(
            f"node_rank={rank} is not among the nodes of nnodes={nodes}, which are numbered from 0 "
            "on; raise nnodes, or lower it"
        )
    if arguments.headless != (rank > 0):
        raise ConfigError(
            f"node_rank={rank} with headless={arguments.headless}: node 0 has the server, and all "
            "others are headless; give --headless on these alone"
        )
    if nodes == 1:
        return
    if stages % nodes:
        raise ConfigError(
            f"nnodes={nodes} with pipeline_parallel_size={stages}: nodes have equal numbers of "
            f"stages; give pipeline_parallel_size={nodes}, or a multiple of it"
        )
    if arguments.data_parallel_size > 1 or arguments.data_parallel_backend != "mp":
        raise ConfigError(
            f"nnodes={nodes}: one engine is divided among the nodes; start a server for each such "
            "engine behind `octavo route`, and leave data_parallel_size and data_parallel_backend "
            "out"
        )
    if rank > 0 and is_unspecified(host):
        raise ConfigError(f"master_addr={host} is no address to connect to; give that of node 0")
    if arguments.link_secret_file is None and not is_loopback(host):
        raise ConfigError(
            f"master_addr={host}: nodes on other machines need a secret that all share: openssl "
            "rand -hex 32 > FILE on one; put the same file on all, and give link_secret_file=FILE"
        )
