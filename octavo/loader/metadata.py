"""A checkpoint's metadata with typed access; errors name the key and the type."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar, cast, overload

from octavo.loader.errors import CorruptFileError, quote

Value = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]
# As stored: text stays bytes until it is asked for, since some files hold broken UTF-8. (Lists that
# are known to be sound may come as texts.)
RawValue = Value | bytes | list[bytes]
Default = TypeVar("Default")


class _Required:
    """A marker for "no default": the key is required."""


_REQUIRED = _Required()


class Metadata(Mapping[str, Value]):
    """Keys and values of one file; values are decoded at each access, so store large ones."""

    def __init__(self, path: Path, decoders: Mapping[str, Callable[[], RawValue]]) -> None:
        self.path = path
        self._decoders = decoders

    @classmethod
    def of_strings(cls, path: Path, values: Mapping[str, str]) -> "Metadata":
        def decoder(text: str) -> Callable[[], RawValue]:
            return lambda: text.encode("utf-8", "surrogatepass")

        return cls(path, {key: decoder(text) for key, text in values.items()})

    def __len__(self) -> int:
        return len(self._decoders)

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoders)

    def __contains__(self, key: object) -> bool:
        return key in self._decoders

    def __getitem__(self, key: str) -> Value:
        raw = self._decoders[key]()
        if isinstance(raw, bytes):
            return self._text(key, raw)
        if isinstance(raw, list) and raw and isinstance(raw[0], bytes):
            return self._texts(key, raw)
        return cast(Value, raw)

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: Default) -> int | Default: ...
    def integer(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "an integer", lambda value: type(value) is int)

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: Default) -> float | Default: ...
    def number(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "a number", lambda value: type(value) in (int, float))

    @overload
    def boolean(self, key: str) -> bool: ...
    @overload
    def boolean(self, key: str, default: Default) -> bool | Default: ...
    def boolean(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "true or false", lambda value: type(value) is bool)

    @overload
    def string(self, key: str) -> str: ...
    @overload
    def string(self, key: str, default: Default) -> str | Default: ...
    def string(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "a string", lambda value: type(value) is str)

    @overload
    def integers(self, key: str) -> list[int]: ...
    @overload
    def integers(self, key: str, default: Default) -> list[int] | Default: ...
    def integers(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "a list of integers", lambda value: _all(value, int))

    @overload
    def numbers(self, key: str) -> list[float]: ...
    @overload
    def numbers(self, key: str, default: Default) -> list[float] | Default: ...
    def numbers(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "a list of numbers", lambda value: _all(value, int, float))

    @overload
    def booleans(self, key: str) -> list[bool]: ...
    @overload
    def booleans(self, key: str, default: Default) -> list[bool] | Default: ...
    def booleans(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "a list of booleans", lambda value: _all(value, bool))

    @overload
    def strings(self, key: str) -> list[str]: ...
    @overload
    def strings(self, key: str, default: Default) -> list[str] | Default: ...
    def strings(self, key: str, default: object = _REQUIRED) -> object:
        return self._typed(key, default, "a list of strings", lambda value: _all(value, str))

    def byte_strings(self, key: str) -> list[bytes]:
        """Return a list of strings as bytes, for vocabularies with tokens that are not UTF-8."""
        self._require(key)
        raw = self._decoders[key]()
        if _all(raw, bytes):
            return cast(list[bytes], raw)
        if _all(raw, str):
            return [text.encode() for text in cast(list[str], raw)]
        raise self._wrong_type(key, "a list of strings", raw)

    def pairs(self, key: str) -> list[tuple[str, str]] | None:
        """Return the two words of each text of a list, if its decoder finds them faster.

        None says nothing about the list: another kind of file, or texts of another form.
        """
        find = getattr(self._decoders.get(key), "pairs", None)
        return None if find is None else cast(list[tuple[str, str]] | None, find())

    def stored_strings(self, key: str) -> tuple[bytes, int] | None:
        """Return a list of strings in GGUF's form and their number; None for any other value."""
        find = getattr(self._decoders.get(key), "stored", None)
        return None if find is None else cast(tuple[bytes, int], find())

    def _require(self, key: str) -> None:
        if key not in self._decoders:
            raise CorruptFileError(
                f"the metadata has no key {quote(key)}",
                path=self.path,
                advice="the file is incomplete or comes from an unknown converter",
            )

    def _typed(
        self, key: str, default: object, wanted: str, fits: Callable[[object], bool]
    ) -> object:
        if default is not _REQUIRED and key not in self._decoders:
            return default
        self._require(key)
        value = self[key]
        if not fits(value):
            raise self._wrong_type(key, wanted, value)
        return value

    def _wrong_type(self, key: str, wanted: str, value: object) -> CorruptFileError:
        found = quote(repr(value)) if not isinstance(value, list) else f"a list of {len(value):,}"
        return CorruptFileError(
            f"metadata {quote(key)} must be {wanted} and is {found}", path=self.path
        )

    def _texts(self, key: str, raw: list[bytes]) -> list[str]:
        try:
            return [item.decode() for item in raw]
        except UnicodeDecodeError:  # again, slowly, to say which
            return [self._text(key, item, index) for index, item in enumerate(raw)]

    def _text(self, key: str, raw: bytes, index: int | None = None) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            where = quote(key) if index is None else f"{quote(key)}[{index:,}]"
            raise CorruptFileError(
                f"metadata {where} is not valid UTF-8: {error.reason} at byte {error.start:,}",
                path=self.path,
            ) from None


def _all(value: object, *types: type) -> bool:
    return isinstance(value, list) and set(map(type, value)).issubset(types)
