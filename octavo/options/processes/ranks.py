"""Settings of an engine's ranks, of engines side by side and of a spare one: what may meet."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from octavo.core.config import ConfigError
from octavo.options.declare import option
from octavo.options.processes.experts import check_experts
from octavo.options.processes.machines import LOCAL_HOST, check_executor, check_nodes

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments

MOST_ENGINES = MOST_RANKS = 64


def ranks_option() -> int:
    """Declare the number of ranks."""
    ranks: int = option(
        1,
        "processes that compute each step of an engine together, each with its share of the "
        "weights and its threads, or its card; results have the same bits for any number of them, "
        "unless tensor_parallel_form is sums",
        "COUNT",
        most=MOST_RANKS,
        flags=("-tp",),
        aliases=("--tp", "--tp-size"),
    )
    return ranks


Form = Literal["auto", "outputs", "sums"]


def form_option() -> Form:
    """Declare the form in which ranks divide the products of a layer."""
    form: Form = option(
        "auto",
        "what ranks divide: outputs, the outputs of every matrix, so that results have the same "
        "bits for any number of ranks; sums, the outputs of every first product and the inputs of "
        "the second one, with a sum over the ranks behind it, so that each rank has its own part "
        "of the KV cache, and results differ by rounding; auto, outputs on the CPU, and sums on "
        "cards",
    )
    return form


def stages_option() -> int:
    """Declare the number of stages."""
    stages: int = option(
        1,
        "processes among which an engine's layers are divided: each has the weights and the KV of "
        "some, and computes these of each step, one after the other; results have the same bits "
        "for any number of them",
        "COUNT",
        most=MOST_RANKS,
        flags=("-pp",),
        aliases=("--pp", "--pp-size"),
    )
    return stages


def contexts(flag: str) -> int:
    """Declare a setting of vLLM's that divides the positions of sequences among ranks."""
    return option(
        1,
        "a number that divides tensor_parallel_size, without effect: positions of a long sequence "
        "are divided among all ranks in any case, and with sums each has those of its heads",
        "COUNT",
        most=MOST_RANKS,
        flags=(flag,),
    )


def _check_links(arguments: EngineArguments) -> None:
    """Refuse what engines on other machines cannot follow, and their settings without them."""
    if arguments.data_parallel_backend == "ray":
        from octavo.options.transport import is_loopback, is_unspecified

        unfit = {
            "enable_lora": (arguments.enable_lora, "adapters are files of this machine"),
            "spare_engine": (arguments.spare_engine, "Ray keeps no spare engine"),
        }
        _refuse(unfit, "data_parallel_backend=ray")
        if is_unspecified(arguments.link_host):
            raise ConfigError(
                f"link_host={arguments.link_host} is no address to which engines can connect; give "
                "the one that this machine has for the others"
            )
        if arguments.link_secret_file is None and not is_loopback(arguments.link_host):
            raise ConfigError(
                f"link_host={arguments.link_host}: engines on other machines need a secret that "
                "all machines share: openssl rand -hex 32 > FILE on one, the same file on all, and "
                "link_secret_file=FILE"
            )
        return
    ray, nodes = "data_parallel_backend=ray", "data_parallel_backend=ray or nnodes"
    has_secret = arguments.link_secret_file is not None and arguments.nnodes == 1
    on_ray = arguments.distributed_executor_backend == "ray"
    either = f"{ray} or distributed_executor_backend=ray"
    for name, is_given, needed in (
        ("link_host", arguments.link_host != LOCAL_HOST, ray),
        ("link_secret_file", has_secret, nodes),
        ("engine_cpus", arguments.engine_cpus != 1 and not on_ray, either),
    ):
        if is_given:
            raise ConfigError(
                f"{name} is for engines on other machines, and there are none; give {needed} too, "
                "or leave it out"
            )


def check_processes(arguments: EngineArguments) -> None:
    """Refuse settings that several engines, a spare one, or the ranks of one cannot follow yet."""
    if arguments.preallocate_kv_cache and arguments.spare_engine:
        raise ConfigError(
            "preallocate_kv_cache with spare_engine would take the memory of the KV cache "
            "twice, once for an engine that may never need it: leave one of them out"
        )
    if arguments.spare_engine and arguments.data_parallel_size > 1:
        raise ConfigError(
            f"spare_engine with data_parallel_size={arguments.data_parallel_size}: the other "
            "engines continue what one has begun, so leave spare_engine out, or add an engine"
        )
    if arguments.pipeline_parallel_size > 1:
        _check_stages(arguments)
    _check_contexts(arguments)
    _check_links(arguments)
    check_executor(arguments)
    check_nodes(arguments)
    check_experts(arguments)
    if arguments.tensor_parallel_form == "sums":
        _check_sums(arguments)
    if arguments.tensor_parallel_size == 1:
        return
    if not sys.platform.startswith("linux"):
        raise ConfigError(
            f"tensor_parallel_size={arguments.tensor_parallel_size} needs Linux, whose processes "
            "can share memory without a name; leave it out"
        )


def _check_sums(arguments: EngineArguments) -> None:
    asked = "tensor_parallel_form=sums"
    if arguments.tensor_parallel_size == 1:
        raise ConfigError(
            f"{asked} is for ranks, and there is one; give tensor_parallel_size too, or leave it "
            "out"
        )
    speculation = arguments.speculative_config
    stages = arguments.pipeline_parallel_size
    unfit = {
        f"pipeline_parallel_size={stages}": (
            stages > 1,
            "the ranks of a stage divide outputs",
        ),
        "enable_lora": (arguments.enable_lora, "adapters are divided by outputs alone"),
        "speculative_config": (
            speculation is not None and speculation.has_drafter,
            "a model that drafts is divided by outputs alone; ngram and suffix work",
        ),
        "packed_cache": (
            arguments.packed_cache is not None,
            "each rank packs some inputs of matrices, and no files are made of these yet",
        ),
        "enable_expert_parallel": (
            arguments.enable_expert_parallel,
            "each rank has an equal share of each expert",
        ),
    }
    _refuse(unfit, asked)


def _check_stages(arguments: EngineArguments) -> None:
    speculation = arguments.speculative_config
    asked = f"pipeline_parallel_size={arguments.pipeline_parallel_size}"
    if not sys.platform.startswith("linux"):
        raise ConfigError(f"{asked} needs Linux; leave it out")
    unfit = {
        "enable_lora": (arguments.enable_lora, "stages compute no rows with adapters yet"),
        "speculative_config": (
            speculation is not None and speculation.has_drafter,
            "a model that drafts reads what the other stages have; ngram and suffix work",
        ),
        "packed_cache": (
            arguments.packed_cache is not None,
            "each stage packs its own layers, and no files are made of these yet",
        ),
        "spare_engine": (arguments.spare_engine, "a spare engine has no stages yet"),
        "enable_eplb": (arguments.enable_eplb, "the ranks of stages copy no experts yet"),
    }
    _refuse(unfit, asked)


def _refuse(unfit: Mapping[str, tuple[bool, str]], asked: str) -> None:
    for name, (is_asked, why) in unfit.items():
        if is_asked:
            raise ConfigError(f"{name} with {asked}: {why}; leave one of them out")


def _check_contexts(arguments: EngineArguments) -> None:
    """Refuse to divide the positions of a sequence among other numbers of ranks than there are."""
    ranks = arguments.tensor_parallel_size
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(arguments, name)
        if ranks % size:
            raise ConfigError(
                f"{name}={size} must divide tensor_parallel_size={ranks}: attention is divided "
                "among the ranks that there are; raise that, or leave this out"
            )
