"""The tokenizer of a model directory: `tokenizer.json` and the small files beside it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.loader.errors import quote
from octavo.loader.strict_json import parse_object
from octavo.text.load_errors import is_from_library, reason, tokenizer_errors_at
from octavo.text.texts_beside import Directory, TextsBeside
from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer, frame, no_panic

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]')
_LONGEST_KEY = 60
log = logging.getLogger(__name__)

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
OTHER_SPECIAL_TOKENS = ("additional_special_tokens", "extra_special_tokens")
# Of a token: ids are sent to the engine in 32 bits. None has leading zeros or other digits.
MAX_ID = 1 << 31
_ID = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_PLACE = re.compile(r"at line (\d{1,9}) column (\d{1,9})\Z", re.ASCII)
# The parts of a tokenizer.json, each with a value that is always accepted.
_HARMLESS: Mapping[str, object] = {
    "model": {"type": "BPE", "vocab": {}, "merges": []},
    "added_tokens": [],
    **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
}
MAX_TEMPLATE_BYTES = 1 << 20  # ChatTemplate's limit, in characters of four bytes each
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

Json = Mapping[str, object]


def load_tokenizer_at(path: Path) -> Tokenizer:
    """Load the tokenizer of a model's directory or of its GGUF file."""
    if path.suffix == ".gguf":  # imported here because the reader of these files imports numpy
        from octavo.loader.gguf.reader import open_gguf
        from octavo.text.gguf_vocabulary import tokenizer_from_gguf

        return tokenizer_from_gguf(open_gguf(path).metadata)
    return tokenizer_from_directory(path)


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """Load the tokenizer that `tokenizer.json`, `tokenizer_config.json` and others describe."""
    texts = Directory(directory)
    with tokenizer_errors_at(directory), no_panic("its own files"):
        return _load(texts, _chat_templates(directory, _read_json(texts, "tokenizer_config.json")))


def tokenizer_without_templates(texts: TextsBeside) -> Tokenizer:
    """Load the tokenizer that these files describe, without its chat templates."""
    with tokenizer_errors_at(texts.directory), no_panic("its own files"):
        return _load(texts, {})


def _load(texts: TextsBeside, chat_templates: Mapping[str, str]) -> Tokenizer:
    config = _read_json(texts, "tokenizer_config.json")
    backend = _backend(texts)
    _add_listed_tokens(backend, config)
    named = _named_tokens(backend, config, _read_json(texts, "special_tokens_map.json"))
    _mark_special(backend, config, named)
    bos = named.get("bos_token") if config.get("add_bos_token") else None
    eos = named.get("eos_token") if config.get("add_eos_token") else None
    if backend.post_processor is None or ((bos or eos) and not _frames(backend)):
        # tokenizer.json takes precedence. Where it adds nothing, the makers of the model relied on
        # the flags. Without them its form of a pair stays; if it has none, both texts of a pair
        # would have the same type.
        frame(backend, bos=bos, eos=eos)
    if config.get("clean_up_tokenization_spaces") and type(backend.model).__name__ != "BPE":
        # With BPE all engines ignore the setting, since it removes spaces that the model wrote.
        log.warning("clean_up_tokenization_spaces is not supported: no spaces are removed")
    return Tokenizer(
        backend,
        special_tokens=named,
        end_ids=_end_ids(texts),
        chat_templates=chat_templates,
    )


def _backend(texts: TextsBeside) -> Backend:
    """Read `tokenizer.json` of a model directory."""
    directory, content = texts.directory, texts.read("tokenizer.json")
    if content is None:
        raise TokenizerError(
            f"{directory} has no tokenizer.json; if it has a tokenizer.model, save the tokenizer"
            " once with save_pretrained of a fast tokenizer and put the tokenizer.json here, or"
            " name a model that has the same tokenizer: tokenizer=MODEL"
        )
    path = directory / "tokenizer.json"
    try:
        return Backend.from_str(content.decode())
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: is not valid UTF-8: {error.reason} at byte {error.start:,}"
        ) from None
    except BaseException as error:  # the library raises nothing more precise than Exception
        if not is_from_library(error):
            raise
        raise TokenizerError(
            f"{path}: cannot be used: {_with_field(error, content, path)}; download it again"
        ) from error


def _with_field(error: BaseException, content: bytes, path: Path) -> str:
    """Return the library's message with the field at fault."""
    text = reason(error)
    place = _PLACE.search(text)
    if place is None:
        return f"{text} ({_part_at_fault(content, path)})"
    field = field_at(content, int(place[1]), int(place[2]))
    return f"{text} ({field})" if field else text


def _part_at_fault(content: bytes, path: Path) -> str:
    """Return the part of a tokenizer.json without which it can be used, where one is enough."""
    whole = parse_object(content, path, path.name)
    for part, harmless in _HARMLESS.items():
        try:
            Backend.from_str(json.dumps({**whole, part: harmless}))
        except BaseException as error:
            if not is_from_library(error):
                raise
        else:
            return part
    return "in several parts"


def _frames(backend: Backend) -> bool:
    """Return whether the tokenizer already puts special tokens around a text."""
    framed, plain = (backend.encode("", add_special_tokens=add).ids for add in (True, False))
    return framed != plain


def _add_listed_tokens(backend: Backend, config: Json) -> None:
    """Apply `added_tokens_decoder`, which overrides added tokens at their own ids."""
    listed = config.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise TokenizerError(
            "tokenizer_config.json: added_tokens_decoder must be an object of tokens by id"
        )
    wrong = next((key for key in listed if not _ID.fullmatch(key)), None)
    if wrong is not None:
        raise TokenizerError(
            f"tokenizer_config.json: added_tokens_decoder has the key {quote(wrong)}, which is "
            "not a token id"
        )
    known = backend.get_added_tokens_decoder()
    for token_id, entry in sorted((int(key), entry) for key, entry in listed.items()):
        content = _content(entry)
        if content is None:
            raise TokenizerError(
                f"tokenizer_config.json: added_tokens_decoder[{token_id}] has no content"
            )
        flags = entry if isinstance(entry, dict) else {}
        token = AddedToken(content, **{flag: bool(flags.get(flag, False)) for flag in FLAGS})
        if token_id in known and _same(known[token_id], token):
            continue
        backend.add_tokens([token])
        if backend.token_to_id(content) != token_id:
            raise TokenizerError(
                f"tokenizer_config.json: added_tokens_decoder gives {quote(content)} the id"
                f" {token_id}, but with this tokenizer.json it is {backend.token_to_id(content)}:"
                " the two files do not belong together"
            )


def _same(one: AddedToken, other: AddedToken) -> bool:
    return one.content == other.content and all(
        getattr(one, flag) == getattr(other, flag) for flag in FLAGS
    )


def _named_tokens(backend: Backend, *configs: Json) -> dict[str, str]:
    """Return `bos_token` and the others, from the first file that names a known token."""
    named: dict[str, str] = {}
    for name in NAMED_TOKENS:
        for config in configs:
            content = _content(config.get(name))
            if content is None:
                continue
            if backend.token_to_id(content) is None:
                log.warning(
                    "%s is %s, which is not in the vocabulary; ignored", name, quote(content)
                )
                continue
            named[name] = content
            break
    return named


def _mark_special(backend: Backend, config: Json, named: Mapping[str, str]) -> None:
    """Mark each token that a file calls special, so that it can be skipped."""
    contents = [*named.values()]
    for key in OTHER_SPECIAL_TOKENS:
        listed = config.get(key)
        values = [*listed.values()] if isinstance(listed, dict) else _items(listed)
        contents += [content for content in map(_content, values) if content is not None]
    added = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    for content in contents:
        token = added.get(content, AddedToken(content, normalized=False))
        if not token.special and backend.token_to_id(content) is not None:
            flags = {flag: getattr(token, flag) for flag in FLAGS if flag != "special"}
            backend.add_special_tokens([AddedToken(content, **flags, special=True)])


def _end_ids(texts: TextsBeside) -> Iterator[int]:
    """Iterate over the ids that end generation: generation_config.json, or else config.json."""
    for name in ("generation_config.json", "config.json"):
        listed = _read_json(texts, name).get("eos_token_id")
        if listed is None:
            continue
        for item in _items(listed):
            if type(item) is not int or not 0 <= item < MAX_ID:
                raise TokenizerError(
                    f"{name}: eos_token_id must be a token id or a list of them, from 0 to "
                    f"{MAX_ID - 1:,}"
                )
            yield item
        return


def _chat_templates(directory: Path, config: Json) -> dict[str, str]:
    """Return the templates by name; files of their own override the configuration."""
    templates: dict[str, str] = {}
    for name, source in (
        ("chat_template.json", _read_json(Directory(directory), "chat_template.json")),
        ("tokenizer_config.json", config),
    ):
        listed = source.get("chat_template")
        if isinstance(listed, str):
            templates["default"] = listed
        elif listed is not None:
            templates.update(_named_templates(name, listed))
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = _read_template(path)
    if (path := directory / "chat_template.jinja").is_file():
        templates["default"] = _read_template(path)
    return templates


def _named_templates(file_name: str, listed: object) -> Iterator[tuple[str, str]]:
    """Iterate over the names and texts of a list of templates."""
    if not isinstance(listed, list):
        raise TokenizerError(
            f"{file_name}: chat_template must be a text, or a list of objects with a name and a "
            f"template, and is of the type {type(listed).__name__}"
        )
    for index, entry in enumerate(listed):
        pair = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else ()
        match pair:
            case (str(name), str(template)):
                yield name, template
            case _:
                raise TokenizerError(
                    f"{file_name}: chat_template[{index}] must be an object with a name and a "
                    "template, both of them texts"
                )


def _read_template(path: Path) -> str:
    """Return the text of a template's own file."""
    try:
        size = path.stat().st_size
        if size > MAX_TEMPLATE_BYTES:
            raise TokenizerError(
                f"{path}: the template has {size:,} bytes, at most {MAX_TEMPLATE_BYTES:,} are read"
            )
        return path.read_bytes().decode()
    except OSError as error:
        raise TokenizerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TokenizerError(
            f"{path}: is not valid UTF-8: {error.reason} at byte {error.start:,}"
        ) from None


def _content(token: object) -> str | None:
    """Return a token's text, which may be written as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _items(value: object) -> list[object]:
    """Return `value` as a list: None is empty, anything but a list is its only item."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _read_json(texts: TextsBeside, name: str) -> Json:
    """Return the object in a JSON file; an empty one if there is no such file."""
    content = texts.read(name)
    return {} if content is None else parse_object(content, texts.directory / name, name)


def field_at(text: bytes, line: int, column: int) -> str:
    """Return the path of the last value that begins before a place, as in `model.merges[3]`.

    Lines and columns count from one, and columns are bytes.
    """
    lines = text.split(b"\n", line)
    end = sum(len(each) + 1 for each in lines[: line - 1]) + column
    path: list[str | int] = []
    key = b""
    for match in _TOKEN.finditer(text, 0, min(end, len(text))):
        token = match[0]
        if token == b"{":
            path.append("")
        elif token == b"[":
            path.append(0)
        elif token in b"]}":
            del path[-1:]
        elif token == b"," and path and isinstance(path[-1], int):
            path[-1] += 1
        elif token == b":" and path and isinstance(path[-1], str):
            path[-1] = key.decode(errors="replace")[:_LONGEST_KEY]
        key = token.strip(b'"')
    words = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(words).lstrip(".").rstrip(".")
