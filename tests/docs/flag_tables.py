"""The tables of other servers' flags, made from our declarations.

They stand on the pages of docs/coming-from, between two marks; the rest of a page is written by
hand. `python -m tests.docs.flag_tables --write` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import dropwhile, takewhile

from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.flags.other_servers import KEYS, OTHERS, SAME, Other
from octavo.options.foreign import FIXED, INERT, MISSING, WITHOUT_EFFECT
from octavo.options.processes.data_parallel import NAMES
from tests.cli.test_foreign_flags import VLLM
from tests.docs.pages import path_of

BEGIN, END = "<!-- flags -->\n", "<!-- end of flags -->\n"
# The first of SGLang's flags in each declaration; those of llama-server stand before it.
_FIRST_OF_SGLANG = "--model-path"
_FIRST_OTHER_OF_SGLANG = "--skip-server-warmup"
# Values of which one may be the case here.
_CANDIDATES = (
    *(1, 0, True, False, "auto", "hf", "vllm", "main", "mp", "uni", "none", "full", "fast", "slow"),
    *("generate", "pooling", "embed", "classify", "score", "reward", "safetensors", "gguf"),
    *("raw_logprobs", "assistant", "*", '{"backend": "xgrammar"}'),
)


def flag_of(name: str) -> str:
    """Return a setting's name as it is typed."""
    return "--" + name.replace("_", "-")


def vllm_flags() -> list[str]:
    """Return the long flags of `vllm serve`."""
    return sorted({words[0] for words in VLLM if words[0].startswith("--")})


@cache
def own_flags() -> set[str]:
    """Return the flags that `octavo serve` follows by themselves."""
    visible = make_parser(COMMANDS["serve"]).visible_actions()
    return {flag for action in visible for flag in action.option_strings}


@cache
def followed() -> list[str]:
    """Return vLLM's flags that mean the same here."""
    foreign = {flag_of(name) for name in (*INERT, *FIXED, *MISSING)}
    own = {*own_flags(), *make_parser(COMMANDS["serve"]).flags(), *map(flag_of, NAMES)}
    return [flag for flag in vllm_flags() if flag in own - foreign or flag in own_flags()]


def accepted(name: str) -> list[str]:
    """Return values with which one of vLLM's fixed options is accepted."""
    is_so, _ = FIXED[name]
    if name == "ignore_patterns":
        return ["*.bin"]
    shown = {True: "on", False: "off"}
    return [
        shown[each] if isinstance(each, bool) else str(each) for each in _CANDIDATES if is_so(each)
    ]


def is_of_llama_server(row: Other) -> bool:
    """Return whether the declaration of a flag is among those of llama-server."""
    return row in list(takewhile(lambda each: _FIRST_OTHER_OF_SGLANG not in each.flags, OTHERS))


def same_of_llama_server() -> dict[str, str]:
    """Return llama-server's names of flags and of keys, with ours."""
    names = takewhile(lambda flag: flag != _FIRST_OF_SGLANG, SAME)
    keys = {flag: target for flag, target in KEYS.items() if not _is_sglangs_key(flag)}
    return {**{flag: SAME[flag] for flag in names}, **keys}


def same_of_sglang() -> dict[str, str]:
    """Return SGLang's names of flags and of keys, with ours."""
    names = dropwhile(lambda flag: flag != _FIRST_OF_SGLANG, SAME)
    keys = {flag: target for flag, target in KEYS.items() if _is_sglangs_key(flag)}
    return {**{flag: SAME[flag] for flag in names}, **keys}


def _is_sglangs_key(flag: str) -> bool:
    return flag.startswith("--speculative-") or flag == "--disable-radix-cache"


def _by_reason(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Group names by what is said of them."""
    found: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        found.setdefault(reason, []).append(name)
    return found


def _cell(text: str) -> str:
    """Write a reason in a cell; what looks like a flag or a setting is quoted."""
    words = [f"`{word}`" if word.startswith("--") else word for word in text.split(" ")]
    return " ".join(words).replace("|", "\\|").replace(";`", "`;").replace(",`", "`,")


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _of_vllm() -> str:
    flags = vllm_flags()
    no_effect = _by_reason({flag_of(n): r for n, r in INERT.items() if flag_of(n) in flags})
    refused = _by_reason({flag_of(n): r for n, r in MISSING.items() if flag_of(n) in flags})
    own = own_flags()
    fixed = [name for name in FIXED if flag_of(name) in flags and flag_of(name) not in own]
    return (
        f"### Followed ({len(followed())})\n\n{_codes(followed())}\n\n"
        "### Accepted, and nothing changes\n\n"
        + _table(("flag", "why"), ((_codes(v), _cell(k)) for k, v in no_effect.items()))
        + "\n### Accepted with what is the case here, refused otherwise\n\n"
        + _table(
            ("flag", "accepted, among others", "why no other"),
            (
                (f"`{flag_of(n)}`", _codes(accepted(n)) or "its absence", _cell(FIXED[n][1]))
                for n in fixed
            ),
        )
        + "\n### Refused, with this reason\n\n"
        + _table(("flag", "reason"), ((_codes(v), _cell(k)) for k, v in refused.items()))
    )


def _of_another(same: Mapping[str, str], rows: Iterable[Other]) -> str:
    rows = list(rows)
    by_target: dict[str, list[str]] = {}
    for flag, target in same.items():
        by_target.setdefault(target, []).append(flag)
    harmless = [row for row in rows if row.harmless is None]
    some = [row for row in rows if row.harmless]
    refused = [row for row in rows if row.harmless == ()]
    return (
        "### The same under another name\n\n"
        + _table(("their flag", "here"), ((_codes(v), f"`{k}`") for k, v in by_target.items()))
        + "\n### Accepted, and nothing changes\n\n"
        + _table(("flag", "why"), ((_codes(r.flags), _cell(r.reason)) for r in harmless))
        + "\n### Accepted with these values, refused with others\n\n"
        + _table(
            ("flag", "accepted", "why no other"),
            ((_codes(r.flags), _codes(r.harmless or ()), _cell(r.reason)) for r in some),
        )
        + "\n### Refused, with this reason\n\n"
        + _table(("flag", "reason"), ((_codes(r.flags), _cell(r.reason)) for r in refused))
    )


def _of_ollama() -> str:
    names = {name: text for name, text in WITHOUT_EFFECT.items() if name.startswith("OLLAMA_")}
    return _table(("variable", "here"), ((f"`{n}`", _cell(text)) for n, text in names.items()))


@cache
def tables() -> dict[str, str]:
    """Return the table of each page."""
    return {
        "docs/coming-from/vllm.md": _of_vllm(),
        "docs/coming-from/llama-cpp.md": _of_another(
            same_of_llama_server(), filter(is_of_llama_server, OTHERS)
        ),
        "docs/coming-from/sglang.md": _of_another(
            same_of_sglang(), (row for row in OTHERS if not is_of_llama_server(row))
        ),
        "docs/coming-from/ollama.md": _of_ollama(),
    }


def written(page: str, table: str) -> str:
    """Return a page with its table."""
    before, begin, rest = path_of(page).read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert all((begin, end)), f"{page} lacks the marks of its table"
    return f"{before}{begin}\n{table}\n{end}{after}"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.docs.flag_tables --write")
    for place, text in tables().items():
        path_of(place).write_text(written(place, text), "utf-8")
