"""Settings of engines on several machines: their links, and vLLM's for nodes of one engine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from octavo.core.config import ConfigError
from octavo.options.declare import option

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments

LOCAL_HOST = "127.0.0.1"
MOST_NODES = 64
MASTER_PORT = 29501  # vLLM's


def engines_option() -> Literal["mp", "ray"]:
    """Declare where whole engines are."""
    backend: Literal["mp", "ray"] = option(
        "mp",
        "where engines are: mp, in processes of this machine; ray, on the machines of a Ray "
        "cluster, which places each and starts another when it ends (octavo serve)",
        flags=("-dpb",),
    )
    return backend


def stages_place_option() -> Literal["mp", "uni", "ray"]:
    """Declare where the stages of an engine are."""
    backend: Literal["mp", "uni", "ray"] = option(
        "mp",
        "where the stages of an engine are: mp (or uni), on this machine, or where nnodes says; "
        "ray, each on a machine of a Ray cluster, the first one on this (nnodes: so many machines)",
    )
    return backend


def placement_option() -> Literal["strict_spread", "pack"]:
    """Declare how Ray places nodes."""
    placement: Literal["strict_spread", "pack"] = option(
        "strict_spread",
        "how Ray places the nodes of distributed_executor_backend=ray: strict_spread, each on "
        "another machine; pack, on as few as have room for them",
    )
    return placement


def placement_seconds_option() -> float:
    """Declare how long the first engine waits for its machines."""
    return option(
        60.0,
        "how long the first engine of distributed_executor_backend=ray waits until its machines "
        "have room; later ones wait as long as start_seconds says",
        "SECONDS",
    )


def cpus_option() -> int:
    """Declare the processors of an engine on another machine."""
    return option(
        1,
        "the processors that Ray reserves for an engine, or for a node of one, which uses all of "
        "its machine",
        "COUNT",
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
        "machines among which the stages of an engine, or its ranks that add up, are divided, in "
        "equal parts; each runs octavo serve with its node_rank (docs/scale.md)",
        "COUNT",
        most=MOST_NODES,
    )


def node_rank_option() -> int:
    """Declare the number of this node."""
    return option(
        0,
        "which of the nodes this machine is; 0 has the server, the scheduler and the first stage "
        "or rank",
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
        False,
        "run the stages, or the ranks, of a node that is not the first, without a server (octavo "
        "serve)",
    )


def processes_of_machine(arguments: EngineArguments) -> int:
    """Return how many processes compute with an engine on each of its machines."""
    processes = arguments.tensor_parallel_size * arguments.pipeline_parallel_size
    return processes // arguments.nnodes


def check_executor(arguments: EngineArguments) -> None:
    """Refuse what Ray cannot place, and settings of places without it."""
    on_ray = arguments.distributed_executor_backend == "ray"
    asked = "distributed_executor_backend=ray"
    if not on_ray or arguments.data_parallel_backend == "ray":
        for name, value, usual in (
            ("ray_placement", arguments.ray_placement, "strict_spread"),
            ("ray_placement_seconds", arguments.ray_placement_seconds, 60.0),
        ):
            if value != usual:
                raise ConfigError(
                    f"{name}={value} is for {asked}, which places nodes of one engine; give that "
                    "and pipeline_parallel_size too, or leave it out"
                )
    if not on_ray:
        return
    if arguments.data_parallel_backend == "ray":
        if arguments.pipeline_parallel_size == 1:
            return  # as vLLM's users write it: each engine is on one machine as a whole
        raise ConfigError(
            f"{asked} with data_parallel_backend=ray: one engine is divided among machines, or "
            "each has one as a whole; leave one of them out"
        )
    if arguments.pipeline_parallel_size == 1:
        raise ConfigError(
            f"{asked} places stages, and there is one, whose ranks (tensor_parallel_size) are on "
            "one machine; give pipeline_parallel_size, the number of machines, or leave it out "
            "(whole engines are placed by data_parallel_backend=ray)"
        )
    if arguments.headless or arguments.node_rank:
        raise ConfigError(
            f"{asked} starts all nodes but the first by itself: leave headless and node_rank out, "
            "and start one server"
        )
    sizes = arguments.kv_cache_memory_bytes, arguments.num_gpu_blocks_override
    if arguments.ray_placement == "pack" and not (arguments.num_threads and any(sizes)):
        raise ConfigError(
            "ray_placement=pack: nodes that share a machine divide neither its cores nor its "
            "memory; give num_threads and kv_cache_memory_bytes, which are of each node, or leave "
            "it out"
        )


def num_nodes(arguments: EngineArguments) -> int:
    """Return the number of nodes; those that Ray places have one stage each by default."""
    is_asked = arguments.distributed_executor_backend == "ray" and arguments.nnodes == 1
    is_divided = is_asked and arguments.data_parallel_backend == "mp"
    return arguments.pipeline_parallel_size if is_divided else arguments.nnodes


def as_placed(arguments: EngineArguments, host: str, secret: bytes | None) -> EngineArguments:
    """Return the arguments of the first of the nodes that Ray places, which has this address."""
    return replace(
        arguments,
        distributed_executor_backend="mp",
        ray_placement="strict_spread",
        ray_placement_seconds=60.0,
        engine_cpus=1,
        master_addr=host if arguments.master_addr == LOCAL_HOST else arguments.master_addr,
        link_secret=secret,
    )


def check_nodes(arguments: EngineArguments) -> None:
    """Refuse numbers of nodes that do not fit what they divide, and links without a secret."""
    nodes, rank = arguments.nnodes, arguments.node_rank
    host = arguments.master_addr
    if rank >= nodes:
        raise ConfigError(
            f"node_rank={rank} is not among the nodes of nnodes={nodes}, which are numbered from 0 "
            f"on; give nnodes={rank + 1} at least, or lower node_rank"
        )
    if arguments.headless != (rank > 0):
        raise ConfigError(
            f"node_rank={rank} with headless={arguments.headless}: node 0 has the server, and all "
            "others are headless; give --headless on these alone"
        )
    if nodes == 1:
        return
    from octavo.options.transport import is_loopback, is_unspecified

    _check_parts(arguments)
    if arguments.spare_engine:
        raise ConfigError(
            f"spare_engine with nnodes={nodes}: the other nodes are in one engine at a time; leave "
            "one of them out"
        )
    if arguments.data_parallel_size > 1 or arguments.data_parallel_backend != "mp":
        raise ConfigError(
            f"nnodes={nodes}: one engine is divided among the nodes; start a server for each such "
            "engine behind `octavo route`, and leave data_parallel_size and data_parallel_backend "
            "out"
        )
    on_ray = arguments.distributed_executor_backend == "ray"
    if (rank > 0 or on_ray) and is_unspecified(host):
        raise ConfigError(f"master_addr={host} is no address to connect to; give that of node 0")
    has_secret = on_ray or arguments.link_secret is not None  # with Ray, one is drawn
    if arguments.link_secret_file is None and not has_secret and not is_loopback(host):
        raise ConfigError(
            f"master_addr={host}: nodes on other machines need a secret that all share: openssl "
            "rand -hex 32 > FILE on one; put the same file on all, and give link_secret_file=FILE"
        )


def _check_parts(arguments: EngineArguments) -> None:
    """Refuse nodes that would not have equal parts of an engine."""
    nodes, stages = arguments.nnodes, arguments.pipeline_parallel_size
    ranks = arguments.tensor_parallel_size
    if arguments.tensor_parallel_form == "sums":
        if ranks % nodes:
            raise ConfigError(
                f"nnodes={nodes} with tensor_parallel_size={ranks}: nodes have equal numbers of "
                f"ranks; give tensor_parallel_size={nodes}, or a multiple of it"
            )
    elif stages % nodes:
        raise ConfigError(
            f"nnodes={nodes} with pipeline_parallel_size={stages}: nodes have equal numbers of "
            f"stages; give pipeline_parallel_size={nodes}, or a multiple of it, or ranks that add "
            "up (tensor_parallel_form=sums)"
        )
