"""Serves several models: finds them, computes the memory of each, and starts the server."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from octavo.cli.output import size, table
from octavo.cli.parsing import UsageError

if TYPE_CHECKING:
    from octavo.client.restart_policy import Timing
    from octavo.options.engine import EngineArguments
    from octavo.options.models import ModelsSettings
    from octavo.options.server import ServerSettings
    from octavo.server.lifecycle import ServerLifecycle
    from octavo.server.models.memory import Room
    from octavo.server.models.model import Model


def run_several(
    arguments: argparse.Namespace,
    config: ServerSettings,
    settings: ModelsSettings,
    timing: Timing,
    arguments_of: Callable[[str], EngineArguments],
) -> int:
    """Serve the models that the command line names, each once it is asked for."""
    from octavo.observe.output import output_never_blocks

    models = _found(arguments.model_word, config, settings)
    room = _room(settings, arguments_of(models[0].source))
    for each in models[: len(arguments.model_word)]:  # a wrong one is found at the start
        each.need = _need(each, arguments_of(each.source), room)
    with contextlib.ExitStack() as stack:
        stack.enter_context(output_never_blocks())
        return _serve(config, settings, timing, arguments_of, models, room)


def _found(words: list[str], config: ServerSettings, settings: ModelsSettings) -> list[Model]:
    """Return the models of the command line, and those of the directory."""
    from octavo.loader.source import resolve
    from octavo.server.models.directory import models_in
    from octavo.server.models.model import Model

    names = config.served_names or tuple(words)
    if len(names) != len(words):
        given = f"{len(names)} different name{'s' if len(names) > 1 else ''}"
        raise UsageError(
            f"--served-model-name has {given} for {len(words)} models; give each its own, in their "
            "order, or leave it out"
        )
    models = []
    for name, word in zip(names, words, strict=True):
        files = resolve(word)  # the user sees the progress of downloads, and errors
        models.append(Model(name, word, tuple(map(str, files.weights))))
    if settings.models_dir is not None:
        models += models_in(settings.models_dir)
    for name, count in Counter(each.name for each in models).items():
        if count > 1:
            raise UsageError(
                f"{name!r} is the name of {count} models; give each its own: --served-model-name"
            )
    for each in models:
        each.idle_seconds = settings.models_idle_seconds
    return models


def _room(settings: ModelsSettings, asked: EngineArguments) -> Room:
    """Return the memory of all models, and their number."""
    from octavo.observe.memory_bill import HEADROOM_BYTES
    from octavo.server.models.memory import Room
    from octavo.usable import choose_backend

    num_bytes = settings.models_memory
    if num_bytes is None:
        memory = choose_backend(asked, is_first=True).kind.memory()
        num_bytes = max(0, memory.available - HEADROOM_BYTES)
        if asked.gpu_memory_utilization is not None:
            num_bytes = min(num_bytes, int(memory.total * asked.gpu_memory_utilization))
    return Room(num_bytes, settings.models_max)


def _need(model: Model, asked: EngineArguments, room: Room) -> Any:
    from octavo.options.transport import ServerStartError
    from octavo.server.models.need import NeedError, answer_of, launch

    process = launch(room)
    try:
        return answer_of(process, asked)
    except NeedError as error:
        raise ServerStartError(f"{model.name}: {error}") from None
    finally:
        process.kill()


def _serve(
    config: ServerSettings,
    settings: ModelsSettings,
    timing: Timing,
    arguments_of: Callable[[str], EngineArguments],
    models: list[Model],
    room: Room,
) -> int:
    import time

    from octavo.server.lifecycle import run_site
    from octavo.server.models.front import Front, ManyModels
    from octavo.server.models.models import Models
    from octavo.server.models.opening import ProcessOpener
    from octavo.server.ready_text import ready_text
    from octavo.serving.server import Shared

    def make() -> ManyModels:
        clock = time.monotonic
        shared = Shared(config, clock)
        opener = ProcessOpener(arguments_of, timing, config, shared, room)
        wait, autoloads = settings.models_wait_seconds, settings.models_autoload
        held = Models(models, opener, room, wait, clock, autoloads=autoloads)
        return ManyModels(Front(config, held, shared, clock))

    def say_ready(life: ServerLifecycle) -> None:
        first, *others = [each.name for each in models]
        rows = [
            (each.name, size(each.need.num_bytes) if each.need else "not computed yet")
            for each in models
        ]
        rows.append(("room for", f"{size(room.num_bytes)}, {room.most} models at once"))
        text = ready_text(life.config, life.port, first, others=others)
        sys.stdout.write(f"{text}\n{table(rows, indent='  ')}")
        sys.stdout.flush()

    return run_site(config, make, say_ready)
