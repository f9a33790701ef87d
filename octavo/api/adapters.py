"""Adapters (LoRA) as callers of Python name them: by a name, a number and a path, as in vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.adapter_copies.errors import AdapterFileError
from octavo.adapter_copies.identity import adapter_id, digest_in
from octavo.api.outputs import RequestError
from octavo.options.named_adapters import MAX_SCALE

if TYPE_CHECKING:
    import asyncio

    from octavo.adapter_copies.copies import AdapterCopies

_PARAM = "lora_request"


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter that a request has, named as in vLLM.

    The files under `lora_path` are copied when they are first used, and again when they have
    changed: equal content is one adapter, whatever its name and number. `scale` multiplies what it
    adds.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False  # changed files are noticed in any case
    scale: float = 1.0

    def __post_init__(self) -> None:
        name: Any = self.lora_name
        number: Any = self.lora_int_id
        path: Any = self.lora_path
        scale: Any = self.scale
        if not isinstance(name, str) or not name:
            raise RequestError(f"lora_name={name!r} must be a text", param=_PARAM)
        if type(number) is not int or number < 1:
            raise RequestError(f"lora_int_id={number!r} must be 1 or more", param=_PARAM)
        if not isinstance(scale, int | float) or not abs(scale) <= MAX_SCALE:
            raise RequestError(f"scale={scale!r} must be within ±{MAX_SCALE:g}", param=_PARAM)
        if not path or not isinstance(path, str | Path):
            raise RequestError(
                f"lora_path={self.lora_path!r} must be the path of an adapter: a directory as PEFT "
                "saves it, or a file of GGUF",
                param=_PARAM,
            )


def taken(copies: AdapterCopies | None, request: LoRARequest | None) -> str | None:
    """Return the engine's id of an adapter whose copy is pinned once, or None without a request.

    Raise RequestError for one that cannot be had. It reads files, unless they are known.
    """
    if request is None:
        return None
    if not isinstance(request, LoRARequest):
        raise RequestError(
            f"lora_request must be a LoRARequest, not {type(request).__name__}; for example "
            'LoRARequest("sql", 1, "/adapters/sql")',
            param=_PARAM,
        )
    if copies is None:
        raise RequestError(
            f"the adapter {request.lora_name!r} is asked for, and this model was loaded without "
            "enable_lora=True",
            param=_PARAM,
        )
    try:
        digest = copies.take(Path(request.lora_path))
    except AdapterFileError as error:
        raise RequestError(
            f"the adapter {request.lora_name!r}: {error}", param=_PARAM, code=error.code
        ) from None
    return adapter_id(digest, float(request.scale))


async def taken_in_thread(
    copies: AdapterCopies | None, request: LoRARequest, stack: ExitStack
) -> str | None:
    """Return what `taken` does, without holding the loop; the copy is kept until the stack ends."""
    import asyncio

    work = asyncio.get_running_loop().run_in_executor(None, taken, copies, request)
    try:
        lora = await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: _release_late(copies, done))
        raise
    release(copies, lora, stack)
    return lora


def _release_late(copies: AdapterCopies | None, done: asyncio.Future[str | None]) -> None:
    """Let a copy go that was made for a caller who has left."""
    if not done.cancelled() and done.exception() is None:
        with ExitStack() as stack:
            release(copies, done.result(), stack)


@contextmanager
def ids_of(copies: AdapterCopies | None, given: Sequence[Any]) -> Iterator[list[str | None]]:
    """Return the ids of adapters, whose copies are kept meanwhile."""
    with ExitStack() as stack:
        ids = []
        for request in given:
            ids.append(taken(copies, request))
            release(copies, ids[-1], stack)
        yield ids


def release(copies: AdapterCopies | None, lora: str | None, stack: ExitStack) -> None:
    """Let a pinned copy go when the stack ends."""
    if copies is not None and lora is not None:
        stack.callback(copies.unpin, digest_in(lora))
