"""Bodies that are wrong: their bytes, JSON, types, numbers, nesting and names."""

from __future__ import annotations

import gzip
import json
import random
from typing import Any

from benchmarks.hostile.attack import (
    CHAT,
    COMPLETIONS,
    INJECTED,
    Attack,
    Kinds,
    Right,
    post,
    request,
)

KINDS = Kinds()
BASE: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "The quick", "max_tokens": 2},
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2},
}
PATHS = (COMPLETIONS, CHAT, "/tokenize", "/detokenize")
NOT_NUMBERS = ('"1"', "true", "[]", "{}", "1e999", "-1e999", "NaN", "Infinity", "1.5", "0x10", "٣")
HUGE_NUMBERS = ("1" * 400, "-" + "9" * 5000, "1" + "0" * 20000, "1e" + "9" * 300, "9" * 20)
WRONG: dict[str, tuple[str, ...]] = {  # raw JSON by field, for both routes
    "model": ("1", "[]", "{}", "true", json.dumps("m" * 600), '"no-such-model"', '"../../etc"'),
    "max_tokens": (*NOT_NUMBERS, *HUGE_NUMBERS, "-1", "2147483648"),
    "n": (*NOT_NUMBERS, *HUGE_NUMBERS, "0", "-1", "129", "16384"),
    "seed": (*NOT_NUMBERS, *HUGE_NUMBERS),
    "top_k": (*NOT_NUMBERS, *HUGE_NUMBERS, "-2"),
    "temperature": ('"1"', "true", "[]", "NaN", "1e999", "-0.1", "2.1", "-Infinity"),
    "top_p": ('"1"', "true", "{}", "NaN", "0", "1.1", "-1"),
    "min_p": ('"1"', "[]", "NaN", "-0.1", "1.1"),
    "presence_penalty": ('"1"', "NaN", "-2.1", "2.1", "1e308"),
    "repetition_penalty": ('"1"', "NaN", "0", "-1", "1e308"),
    "typical_p": ('"1"', "[]", "NaN", "0", "1.1"),
    "dry_base": ('"1"', "NaN", "0.9", "1e308"),
    "dry_penalty_last_n": (*NOT_NUMBERS, *HUGE_NUMBERS, "-2", "32769"),
    "dry_sequence_breakers": ('"x"', "[1]", '[""]', json.dumps(["x" * 41]), json.dumps(["x"] * 33)),
    "mirostat": (*NOT_NUMBERS, *HUGE_NUMBERS, "-1", "3"),
    "mirostat_tau": ('"1"', "[]", "NaN", "-0.1", "101"),
    "samplers": ('"x"', "[1]", '["x"]', '["xtc", "xtc"]', json.dumps(["xtc"] * 10)),
    "stop": ("1", "{}", "[1]", "[[]]", '[""]', json.dumps(["x"] * 17), json.dumps("x" * 300)),
    "stop_token_ids": ('"1"', "[-1]", '["1"]', "[1.5]", "[2147483648]", "[true]", "{}"),
    "allowed_token_ids": ('"1"', "[-1]", "[[]]", "[1e999]", "[100000000]"),
    "logit_bias": ("[]", "1", '{"a": 1}', '{"-1": 1}', '{"1": "x"}', '{"1": 1e999}', '{"1": null}'),
    "bad_words": ('"x"', "[1]", '[""]', "[null]", json.dumps(["x"] * 200)),
    "stream": ('"true"', "1", "[]"),
    "stream_options": ("1", "[]", '"x"', '{"include_usage": "x"}'),
    "ignore_eos": ('"x"', "1", "{}"),
    "priority": ('"1"', "[]", "1e999", "10000000"),
    "deadline_ms": ('"1"', "0", "-1", "1e999"),
    "cache_salt": ("1", '""', "[]", json.dumps("s" * 300)),
    "truncate_prompt_tokens": ('"1"', "-2", "1.5", "1e999"),
}
SHAPES = {
    COMPLETIONS: {
        "prompt": (
            "null",
            "1",
            "1.5",
            "true",
            "{}",
            "[[]]",
            "[[-1]]",
            "[1.5]",
            "[null]",
            "[{}]",
            '["a", 1]',
            "[2147483648]",
            "[[[1]]]",
            "[100000000]",
            "[true]",
        ),
        "logprobs": ('"1"', "[]", "-2", "1000000", "true"),
    },
    CHAT: {
        "messages": (
            "null",
            "1",
            '"x"',
            "{}",
            "[]",
            "[1]",
            "[null]",
            "[[]]",
            "[{}]",
            '[{"role": 1}]',
            '[{"role": "user", "content": 1}]',
            '[{"role": "user"}, 1]',
            '[{"role": "user", "content": [1]}]',
            '[{"role": "", "content": "x"}]',
            '[{"role": "user", "content": [{"type": "text"}]}]',
            '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]',
            '[{"role": "user", "content": {"a": 1}}]',
            '[{"content": "x"}]',
        ),
        "logprobs": ('"1"', "[]", "5"),
        "top_logprobs": ('"1"', "-2", "1000000"),
        "documents": ("1", "[1]", '"x"', "{}"),
        "chat_template_kwargs": ("1", "[]", '"x"'),
    },
}
SURROGATES = (r"\ud800", r"\udfff", r"x\ud83d", r"\ude00\ud83d", r"\ud800" * 1000)


def with_field(path: str, name: str, raw: str) -> bytes:
    """Return a body in JSON whose field `name` has a raw value."""
    fields = {key: json.dumps(value) for key, value in BASE[path].items()} | {name: raw}
    return ("{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in fields.items()) + "}").encode()


@KINDS.add(share=12)
def wrong_types_and_bounds(chance: random.Random) -> Attack:
    path = chance.choice([COMPLETIONS, CHAT])
    fields = WRONG | SHAPES[path]
    name = chance.choice(list(fields))
    wrong = Attack((post(path, with_field(path, name, chance.choice(fields[name]))),))
    return wrong.followed() if chance.random() < 0.2 else wrong


@KINDS.add(share=6)
def bytes_that_are_no_json(chance: random.Random) -> Attack:
    whole = json.dumps(BASE[CHAT]).encode()
    bodies = [
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\x00",
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf" + whole,
        whole[: chance.randrange(1, len(whole))],
        whole + b"x",
        whole + whole,
        whole.replace(b"Hello", b"\xff\xfe\xc0\x80"),
        whole.replace(b"Hello", b"\xed\xa0\x80"),
        whole.replace(b"Hello", b"\x00\x01\n"),
        whole.replace(b"Hello", rb"\x41\u12"),
        whole.replace(b":", b"="),
        b"/* */" + whole,
        b"{'prompt': 'x'}",
        chance.randbytes(chance.choice([1, 100, 5000])),
        b"=" * 2000,
    ]
    return Attack((request(chance.choice(PATHS), chance.choice(bodies)),))


@KINDS.add(share=2)
def deep_nesting(chance: random.Random) -> Attack:
    depth = chance.choice([150, 5000, 200_000])
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
    raw = opening * depth + "1" + closing * depth
    name = chance.choice(["prompt", "stop", "unknown", "logit_bias", "metadata"])
    if chance.random() < 0.3:
        raw = opening * depth  # without an end
    # A field that is not known is skipped, whatever it contains.
    is_skipped = name in ("unknown", "metadata") and raw.endswith(closing)
    right = Right.SERVED if is_skipped else Right.REFUSED
    return Attack((post(COMPLETIONS, with_field(COMPLETIONS, name, raw)),), right)


@KINDS.add(share=3)
def lone_surrogates(chance: random.Random) -> Attack:
    path = chance.choice([COMPLETIONS, CHAT])
    raw = f'"{chance.choice(SURROGATES)}"'
    fields = {"stop": raw, "bad_words": f"[{raw}]", "cache_salt": raw, "model": raw}
    if path == COMPLETIONS:
        fields["prompt"] = raw
    else:
        fields["messages"] = f'[{{"role": "user", "content": {raw}}}]'
        fields["chat_template_kwargs"] = f'{{"a": {raw}}}'
    name = chance.choice(list(fields))
    return Attack((post(path, with_field(path, name, fields[name])),))


@KINDS.add(share=3)
def names_for_headers(chance: random.Random) -> Attack:
    """Make unknown fields whose names would break out of a response's header."""
    ends = ["\n", "\r\n", f"\r\n{INJECTED}: 1", f"\n{INJECTED}: 1\n", "\x00", "é", "\u2028", "\x7f"]
    name = "field" + chance.choice([*ends, " ", ",", "\t", "x" * 5000, "\ud800", "\u0085"])
    body = json.dumps(BASE[COMPLETIONS] | {name: 1}).encode()
    return Attack((post(COMPLETIONS, body),), Right.SERVED)


@KINDS.add(share=2)
def fields_that_ask_for_a_shape(chance: random.Random) -> Attack:
    asked: dict[str, Any] = {
        "grammar": 'root ::= "a"',
        "json_schema": {"type": "object"},
        "regex": "a+",
        "ebnf": 'root ::= "a"',
        "guided_json": {"type": "object"},
        "guided_regex": "(a+)+$",
        "guided_choice": ["a", "b"],
        "structured_outputs": {"regex": "(x+x+)+y"},
        "response_format": {"type": "json_object"},
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }
    path, name = chance.choice([COMPLETIONS, CHAT]), chance.choice(list(asked))
    return Attack((post(path, BASE[path] | {name: asked[name]}),), Right.SERVED)


@KINDS.add()
def kinds_of_content(chance: random.Random) -> Attack:
    body = json.dumps(BASE[COMPLETIONS]).encode()
    kind = chance.choice(
        [
            ("Content-Type", "text/plain"),
            ("Content-Type", "multipart/form-data; boundary=x"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Encoding", "gzip"),
            ("Content-Encoding", "br, gzip"),
        ]
    )
    if kind[0] == "Content-Encoding":
        body = gzip.compress(bytes(10 << 20))
    return Attack((post(COMPLETIONS, body, [kind]),))


@KINDS.add()
def wrong_detokenise_and_tokenise(chance: random.Random) -> Attack:
    bodies = {
        "/detokenize": (
            "{}",
            '{"tokens": "x"}',
            '{"tokens": [-1]}',
            '{"tokens": [1e999]}',
            '{"tokens": [2147483647]}',
            '{"tokens": [[1]]}',
            '{"tokens": [true]}',
        ),
        "/tokenize": (
            "{}",
            '{"prompt": 1}',
            '{"prompt": ["x"]}',
            '{"messages": []}',
            '{"prompt": "x", "messages": [{"role": "user", "content": "x"}]}',
            r'{"prompt": "\ud800"}',
            '{"prompt": "x", "add_special_tokens": 1}',
        ),
    }
    path = chance.choice(list(bodies))
    return Attack((post(path, chance.choice(bodies[path]).encode()),))
