"""Refuses arguments that no engine can follow on this machine, before a model is looked for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from octavo import env
from octavo.backends.select import Choice, Name, select
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments

# A disk that is full may have room again when there is something to write: that is only logged.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_first_start(arguments: EngineArguments) -> None:
    """Raise an error for arguments with which the first start of an engine would end.

    An engine that replaces another starts without a directory for packed weights too.
    """
    choose_backend(arguments)
    if arguments.packed_cache is not None:
        _check_directory(arguments.packed_cache, arguments.packed_cache_bytes)


def choose_backend(arguments: EngineArguments) -> Choice:
    """Choose the backend; raise an error for arguments that it cannot follow here."""
    choice = select(arguments.backend, block_size=arguments.block_size)
    for name in ("cpu_weights", "kv_cache_dtype"):
        value = getattr(arguments, name)
        if value != "auto" and not is_packed(arguments, choice.name):
            raise ConfigError(
                f"{name}={value!r} is something that the native backend has, and not beside "
                "dtype='float32', which keeps everything exact; leave one of them out"
            )
    (_check_torch if choice.name == "torch" else _check_native)(arguments)
    return choice


def choose_dtype(arguments: EngineArguments, backend: Name) -> str:
    """Choose the type of the KV cache, and of torch's weights."""
    if arguments.dtype != "auto":
        return arguments.dtype
    return "bfloat16" if backend == "native" else "float32"


def is_packed(arguments: EngineArguments, backend: Name) -> bool:
    """Return whether weights are laid out for the native kernels, in less than 32 bits."""
    return backend == "native" and choose_dtype(arguments, backend) != "float32"


def packed_directory(named: str) -> Path:
    """Return the directory that `packed_cache` names."""
    if named == "auto":
        return env.packed_weights_directory().absolute()
    if not named or "\0" in named:
        raise ConfigError(f"packed_cache={named!r} names no directory")
    try:
        os.fsencode(named)
        return Path(named).expanduser().absolute()
    # `~name` of a user who does not exist, or characters that no path can have.
    except (RuntimeError, UnicodeEncodeError) as error:
        raise ConfigError(f"packed_cache={named!r} cannot be used: {error}") from error


def _check_directory(named: str, most_bytes: int) -> None:
    """Refuse a directory in which no packed weights can be kept or found."""
    from octavo.backends.native.packed_cache.directory import PackedDirectory, reason

    path = packed_directory(named)
    try:
        directory = PackedDirectory(path, most_bytes)
        directory.check_use()
        directory.close()
    except OSError as error:
        if error.errno in _FULL:
            return
        variable = " (OCTAVO_CACHE says where that is)" if named == "auto" else ""
        raise ConfigError(
            f"packed_cache={str(path)!r} cannot be used: {reason(error)}; name a directory that "
            f"user {os.geteuid()} owns and may write to{variable}, or leave it out"
        ) from error


def _check_torch(arguments: EngineArguments) -> None:
    """Refuse arguments that only the native engine has."""
    if arguments.num_threads:
        raise ConfigError(
            f"num_threads={arguments.num_threads} is the native engine's, and the torch "
            "backend computes here, which takes its number from OMP_NUM_THREADS; set that, or "
            "leave this out"
        )
    for name in ("cpu_isa", "accumulation_order"):
        if value := getattr(arguments, name):
            raise ConfigError(
                f"{name}={value!r} is about the native engine's kernels, and the torch backend "
                "computes here, which chooses its own; leave it out"
            )
    if arguments.preallocate_kv_cache:
        raise ConfigError(
            "preallocate_kv_cache is something that the native engine can do, and the torch "
            "backend computes here; leave it out"
        )
    if arguments.packed_cache is not None:
        raise ConfigError(
            f"packed_cache={arguments.packed_cache!r} is for weights that the native engine "
            "packs, and the torch backend computes here; leave it out"
        )


def _check_native(arguments: EngineArguments) -> None:
    """Refuse arguments with which the engine cannot be made, or would mostly wait."""
    from octavo.backends.native.tiers import check_threads, choose_tier

    try:
        if arguments.num_threads:
            check_threads(arguments.num_threads, "num_threads")
        else:
            check_threads(env.cpu_threads(), env.CPU_THREADS)
        if arguments.cpu_isa:
            choose_tier(arguments.cpu_isa, arguments.accumulation_order)
        else:
            order = arguments.accumulation_order
            choose_tier(env.cpu_instruction_set(), order, asked_by=env.CPU_ISA)
        env.measures_kernels()  # refuses another value than on or off
    except ValueError as error:
        raise ConfigError(str(error)) from None
