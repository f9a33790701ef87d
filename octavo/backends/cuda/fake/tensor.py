"""Tensors of the fake device: they hold numbers of the CPU, and say that they are elsewhere.

An operation runs on the CPU, on what the tensors hold, so that values flow. Before that it is
checked as a card would: all its tensors are on one device, and in a step nothing of it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from octavo.backends.cuda.fake.graph import Account, Recording

DEVICE_TYPE = "fake"
_setup_privateuseone_for_python_backend(DEVICE_TYPE)
DEVICE = torch.device(DEVICE_TYPE, 0)

_aten = torch.ops.aten
# Their results have a size, or a value, that the host must know.
WAITING = {
    _aten._local_scalar_dense,
    _aten.nonzero,
    _aten.masked_select,
    _aten.equal,
    _aten.unique_consecutive,
    _aten._unique2,
    _aten.unique_dim,
    _aten.is_nonzero,
    _aten.bincount,
}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}


class DeviceError(AssertionError):
    """A use of the device that a card would refuse, or that no step may have."""


class Observer(Protocol):
    """The owner of a device, which counts memory and says what may wait."""

    def wait(self, what: str) -> None:
        """Note that the host waits for the device, or refuse it."""

    def copied(self, source: Tensor, *, is_pinned: bool) -> None:
        """Note a copy from the host, or refuse it."""

    def arrives(self, target: Tensor, content: Tensor) -> None:
        """Note a copy into pinned memory, for which its reader has to wait."""

    @property
    def account(self) -> Account:
        """The account of the memory of what is made now."""

    @property
    def recording(self) -> Recording | None:
        """The graph that this thread captures."""


class PinnedTensor(Tensor):
    """A buffer of the host from which copies do not wait."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class _Storage:
    """The memory of a fake tensor and its views."""

    def __init__(self, num_bytes: int, account: Account) -> None:
        self._num_bytes, self._account = num_bytes, account
        account.hold(num_bytes)

    def __del__(self) -> None:
        self._account.hold(-self._num_bytes)


class FakeTensor(Tensor):
    """A tensor of the fake device."""

    on_cpu: Tensor
    kept: _Storage
    observer: Observer

    @staticmethod
    def __new__(cls, inner: Tensor, kept: _Storage, observer: Observer) -> FakeTensor:
        made: FakeTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.on_cpu, made.kept, made.observer = inner, kept, observer
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeTensor({tuple(self.shape)}, {self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        tensors = _tensors_of((args, kwargs or {}))
        observer = next(each.observer for each in tensors if isinstance(each, FakeTensor))
        return run(operation, args, kwargs or {}, observer)


def _tensors_of(tree: Any) -> list[Tensor]:
    return [each for each in tree_flatten(tree)[0] if isinstance(each, Tensor)]


def run(operation: Any, args: Any, kwargs: dict[str, Any], observer: Observer) -> Any:
    """Run an operation on what its tensors hold, unless a card would not run it so."""
    packet = operation.overloadpacket
    if packet is _aten._to_copy:
        return _convert(args[0], kwargs, observer)
    if packet is _aten.copy_:
        return _copy(
            args[0], args[1], bool((*args, False)[2] or kwargs.get("non_blocking")), observer
        )
    tensors = _tensors_of((args, kwargs))
    is_here = any(isinstance(each, FakeTensor) for each in tensors)
    asked = kwargs.get("device")
    if not is_here and (asked is None or torch.device(asked).type != DEVICE_TYPE):
        return operation(*args, **kwargs)
    _check_places(packet, args, tensors)
    if packet in WAITING:
        observer.wait(str(packet))
    if packet in _INDEXING and any(_is_mask(each) for each in args[1]):
        observer.wait(f"{packet} by a mask")
    inner_args, inner_kwargs = tree_map(_inner, (args, kwargs))
    if "device" in inner_kwargs:
        inner_kwargs["device"] = torch.device("cpu")
    result = _do(operation, inner_args, inner_kwargs, observer)
    if packet is _aten._local_scalar_dense:
        return result
    return tree_map(_wrapper_of(tensors, observer), result)


def _do(operation: Any, args: Any, kwargs: dict[str, Any], observer: Observer) -> Any:
    """Run an operation on the CPU, or note it for the graph that is captured."""
    recording = observer.recording
    if recording is None:
        return operation(*args, **kwargs)
    return recording.operation(operation, args, kwargs)


def _check_places(packet: Any, args: Any, tensors: Sequence[Tensor]) -> None:
    """Refuse tensors of the host beside those of the device; one number alone is no tensor."""
    for each in tensors:
        if isinstance(each, FakeTensor) or not each.dim():
            continue
        raise DeviceError(
            f"{packet}: a tensor {tuple(each.shape)} is on the host, and others on the device"
        )


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _inner(each: Any) -> Any:
    return each.on_cpu if isinstance(each, FakeTensor) else each


def _wrapper_of(tensors: Sequence[Tensor], observer: Observer) -> Callable[[Any], Any]:
    """Return a function that makes results tensors of the device; a view shares its memory."""
    given = [each for each in tensors if isinstance(each, FakeTensor)]

    def wrap(result: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        for each in given:  # an operation in place returns its argument
            if each.on_cpu is result:
                return each
        address = result.untyped_storage()._cdata
        for each in given:
            if each.on_cpu.untyped_storage()._cdata == address:
                return FakeTensor(result, each.kept, observer)
        return wrapped(result, observer)

    return wrap


def wrapped(inner: Tensor, observer: Observer) -> FakeTensor:
    """Return a tensor of the device with memory of its own."""
    return FakeTensor(inner, _Storage(inner.untyped_storage().nbytes(), observer.account), observer)


def _convert(source: Tensor, kwargs: dict[str, Any], observer: Observer) -> Tensor:
    """Copy a tensor to another device or type."""
    asked = kwargs.get("device")
    was_here = isinstance(source, FakeTensor)
    goes_here = was_here if asked is None else torch.device(asked).type == DEVICE_TYPE
    is_async = bool(kwargs.get("non_blocking"))
    rest = {
        name: value
        for name, value in kwargs.items()
        if name not in ("device", "non_blocking", "pin_memory")
    }
    if was_here and not goes_here:
        observer.wait(f"a copy {tuple(source.shape)} to the host")
    if goes_here and not was_here:
        _note_upload(source, is_async, observer)
    if not goes_here:
        made: Tensor = _aten._to_copy(_inner(source), **rest)
        return made
    return wrapped(_do(_aten._to_copy.default, (_inner(source),), rest, observer), observer)


def _copy(target: Tensor, source: Tensor, is_async: bool, observer: Observer) -> Tensor:
    """Copy the content of a tensor into another."""
    if isinstance(source, FakeTensor) and not isinstance(target, FakeTensor):
        # To pinned memory it does not wait: it is the reader who has to.
        if is_async and isinstance(target, PinnedTensor):
            observer.arrives(target, source.on_cpu)
            return target
        observer.wait(f"a copy {tuple(source.shape)} to the host")
    elif isinstance(target, FakeTensor) and not isinstance(source, FakeTensor) and source.dim():
        _note_upload(source, is_async, observer)
    _do(_aten.copy_.default, (_inner(target), _inner(source)), {}, observer)
    return target


def _note_upload(source: Tensor, is_async: bool, observer: Observer) -> None:
    observer.copied(source, is_pinned=isinstance(source, PinnedTensor) and is_async)
