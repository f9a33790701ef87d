"""Whether a command line names several models, and what has no meaning beside them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from octavo.cli.parsing import UsageError

if TYPE_CHECKING:
    from octavo.options.engine import EngineArguments
    from octavo.options.server import ServerSettings

# Settings of the server that are of one model, or that nothing keeps apart for several.
_OF_ONE = (
    *("journal", "responses_store", "batch_dir", "grpc_port", "admin_socket"),
    *("lora_modules", "lora_directory", "lora_resolver", "allow_runtime_lora_updating"),
    *("any_model_name", "sleep_idle_seconds"),
)
_OF_ONE_ENGINE = ("enable_lora", "tokenizer", "spare_engine", "kv_events_config")


def names_several(arguments: argparse.Namespace) -> bool:
    """Return whether the command line asks for several models."""
    return len(arguments.model_word) > 1 or getattr(arguments, "models_dir", None) is not None


def check_several(
    arguments: argparse.Namespace, config: ServerSettings, asked: EngineArguments
) -> None:
    """Refuse what has no meaning beside several models."""
    if getattr(arguments, "model", None) is not None:
        raise UsageError("--model names one model; write all of them as words, or leave it out")
    if arguments.engine != "process":
        raise UsageError(f"--engine {arguments.engine} runs one model; leave it out")
    found = [name for name in _OF_ONE if getattr(config, name) not in (None, ())]
    found = [name for name in found if getattr(config, name) is not False]
    found += [name for name in _OF_ONE_ENGINE if getattr(asked, name)]
    if asked.data_parallel_backend != "mp":
        found.append("data_parallel_backend")
    if asked.distributed_executor_backend == "ray":
        found.append("distributed_executor_backend")
    elif asked.nnodes > 1:
        found.append("nnodes")
    if asked.speculative_config is not None and asked.speculative_config.drafter is not None:
        found.append("speculative_config")
    if found:
        flag = "--" + found[0].replace("_", "-")
        raise UsageError(f"{flag} is for a server with one model; leave it out, or start one each")
