"""The tokenizer of a model directory: `tokenizer.json` and the small files beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.text.token_bytes import TokenizerError
from octavo.text.tokenizer import Tokenizer, frame, no_panic

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
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")

Json = Mapping[str, object]


@no_panic("its own files")
def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """Load the tokenizer that `tokenizer.json`, `tokenizer_config.json` and others describe."""
    config = _read_json(directory / "tokenizer_config.json")
    backend = _backend(directory)
    _add_listed_tokens(backend, config)
    named = _named_tokens(backend, config, _read_json(directory / "special_tokens_map.json"))
    _mark_special(backend, config, named)
    if not _frames(backend):
        # tokenizer.json takes precedence. Where it adds nothing, the makers of the model relied on
        # the flags.
        frame(
            backend,
            bos=named.get("bos_token") if config.get("add_bos_token") else None,
            eos=named.get("eos_token") if config.get("add_eos_token") else None,
        )
    if config.get("clean_up_tokenization_spaces") and type(backend.model).__name__ != "BPE":
        # With BPE all engines ignore the setting, since it removes spaces that the model wrote.
        log.warning("clean_up_tokenization_spaces is not supported: no spaces are removed")
    return Tokenizer(
        backend,
        special_tokens=named,
        end_ids=_end_ids(directory),
        chat_templates=_chat_templates(directory, config),
    )


def _backend(directory: Path) -> Backend:
    """Read `tokenizer.json` of a model directory."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(
            f"{directory} has no tokenizer.json; if it has a tokenizer.model, save the tokenizer"
            " once with save_pretrained of a fast tokenizer and put the tokenizer.json here, or"
            " name a model that has the same tokenizer: tokenizer=MODEL"
        )
    try:
        return Backend.from_file(str(path))
    except Exception as error:  # the library raises nothing more precise
        raise TokenizerError(f"{path} cannot be read: {error}") from error


def _frames(backend: Backend) -> bool:
    """Return whether the tokenizer already puts special tokens around a text."""
    framed, plain = (backend.encode("", add_special_tokens=add).ids for add in (True, False))
    return framed != plain


def _add_listed_tokens(backend: Backend, config: Json) -> None:
    """Apply `added_tokens_decoder`, which overrides added tokens at their own ids."""
    listed = config.get("added_tokens_decoder", {})
    if not isinstance(listed, dict) or not all(map(str.isdecimal, listed)):
        raise TokenizerError("added_tokens_decoder in tokenizer_config.json must be tokens by id")
    known = backend.get_added_tokens_decoder()
    for token_id in sorted(map(int, listed)):
        entry = listed[str(token_id)]
        content = _content(entry)
        if content is None:
            raise TokenizerError(f"added token {token_id} in tokenizer_config.json has no content")
        token = AddedToken(content, **{flag: bool(entry.get(flag, False)) for flag in FLAGS})
        if token_id in known and _same(known[token_id], token):
            continue
        backend.add_tokens([token])
        if backend.token_to_id(content) != token_id:
            raise TokenizerError(
                f"tokenizer_config.json gives {content!r} the id {token_id}, but with this"
                f" tokenizer.json it is {backend.token_to_id(content)}: the two files do not"
                " belong together"
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
                log.warning("%s is %r, which is not in the vocabulary; ignored", name, content)
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


def _end_ids(directory: Path) -> Iterator[int]:
    """Iterate over the ids that end generation: generation_config.json, or else config.json."""
    for name in ("generation_config.json", "config.json"):
        listed = _read_json(directory / name).get("eos_token_id")
        if listed is not None:
            yield from (item for item in _items(listed) if isinstance(item, int))
            return


def _chat_templates(directory: Path, config: Json) -> dict[str, str]:
    """Return the templates by name; files of their own override the configuration."""
    templates: dict[str, str] = {}
    for source in (_read_json(directory / "chat_template.json"), config):
        listed = source.get("chat_template")
        if isinstance(listed, str):
            templates["default"] = listed
        for entry in _items(listed):
            if isinstance(entry, dict):
                templates[str(entry["name"])] = str(entry["template"])
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text("utf-8")
    if (path := directory / "chat_template.jinja").is_file():
        templates["default"] = path.read_text("utf-8")
    return templates


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


def _read_json(path: Path) -> Json:
    """Return the object in a JSON file; an empty one if there is no such file."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold an object, but holds a {type(content).__name__}")
    return content
