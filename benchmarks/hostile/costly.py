"""Requests that would cost much: many texts, names and objects, templates without an end."""

from __future__ import annotations

import json
import random
from typing import Any

from benchmarks.hostile.attack import CHAT, COMPLETIONS, Attack, Kinds, Right, post
from benchmarks.hostile.bodies import with_field

KINDS = Kinds()
SERVED = Right.SERVED
TEXT = "The quick brown fox jumps over the lazy dog. "
# Rendered with `messages`; each asks for more time, memory or rights than a template may have.
TEMPLATES = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
    "{{ 'x' * 9999999999 }}",
    "{{ ['x'] * 9999999999 }}",
    "{{ 'x'.center(9999999999) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:999999999}'.format(1) }}",
    "{% set n = 10 ** 4000 %}{{ n ** 4000 }}",
    "{% set n = 'x' * 90000 %}" + "{% if 'y' in n %}{% endif %}" * 9000,
    "{% set n = 10 ** 4000 %}{% for i in range(9000) %}{% set m = n ** 9 // 7 %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set l = [] %}{% for i in range(9999) %}{{ l.append('x' * 9999) or '' }}{% endfor %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ messages.__class__.__base__ }}",
    "{% include '/etc/passwd' %}",
    "{{ lipsum(99999) }}",
    "{% for i in [1] %}{{ loop.__class__ }}",
    "{{" * 5000,
    "{% if x %}" * 3000,
    "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
    "{{ raise_exception('" + "e" * 100000 + "') }}",
    "{{ raise_exception('\\ud800') }}",
)
SEARCH = "{{ 1 in [0] * 15000000 }}"  # a fast machine may do it in time
# Outcomes of these are the template's own: a lone surrogate, or an empty prompt.
ODD_TEMPLATES = ("{{ '\\ud800' }}", "", "{{ messages }}", "{{ '\\x00' }}", "{{ 1 // 0 }}", SEARCH)


def conversation(template: str) -> bytes:
    """Return a body with a chat template of the client's own."""
    messages = [{"role": "user", "content": "Hello"}]
    body = {"messages": messages, "chat_template": template, "max_tokens": 1}
    return json.dumps(body).encode()


@KINDS.add(share=0.6)
def templates_without_an_end(chance: random.Random) -> Attack:
    return Attack((post(CHAT, conversation(chance.choice(TEMPLATES))),))


@KINDS.add(share=0.6)
def odd_templates(chance: random.Random) -> Attack:
    return Attack((post(CHAT, conversation(chance.choice(ODD_TEMPLATES))),), SERVED)


@KINDS.add(share=0.15)
def many_prompts(chance: random.Random) -> Attack:
    """Make a valid request of many prompts, or one of 6 MB whose prompts have too many tokens."""
    count = chance.choice([128, 1000, 2048])
    size = chance.choice([len(TEXT), 6_000_000 // count])
    body = {"prompt": [TEXT * (size // len(TEXT))] * count, "max_tokens": 1}
    return Attack((post(COMPLETIONS, body),), SERVED)


@KINDS.add(share=0.3)
def too_many_prompts(chance: random.Random) -> Attack:
    prompts = chance.choice([["x"] * 5000, [[5]] * 100_000, ["x"] * 1_000_000])
    return Attack((post(COMPLETIONS, {"prompt": prompts, "max_tokens": 1}),))


@KINDS.add(share=0.3)
def too_long_prompts(chance: random.Random) -> Attack:
    word = chance.choice([TEXT, "a", " ", "\n", "🦊", "Ω", "\u200d", "aб"])
    prompt = word * (chance.choice([200_000, 4_000_000]) // len(word.encode()))
    if chance.random() < 0.5:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
        return Attack((post(CHAT, body),))
    return Attack((post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1}),))


@KINDS.add(share=0.3)
def too_many_token_ids(chance: random.Random) -> Attack:
    ids = [chance.randrange(3, 60) for _ in range(chance.choice([5_000, 1_000_000]))]
    return Attack((post(COMPLETIONS, {"prompt": ids, "max_tokens": 1}),))


@KINDS.add(share=0.15)
def unknown_names(chance: random.Random) -> Attack:
    count = chance.choice([20_000, 700_000])
    names = ",".join(f'"{number:x}":1' for number in range(count))
    return Attack((post(COMPLETIONS, f'{{"prompt": "x", "max_tokens": 1, {names}}}'.encode()),))


@KINDS.add(share=0.15)
def empty_objects(chance: random.Random) -> Attack:
    """Make a body of objects that take many times their size once they are built."""
    item = chance.choice(["{}", "[]", "[{}]", '{"":[]}', '""', "0"])
    raw = "[" + ",".join([item] * (7_000_000 // (len(item) + 1))) + "]"
    name = chance.choice(["documents", "messages", "stop", "tools", "unknown", "metadata"])
    right = SERVED if name in ("unknown", "metadata") else Right.REFUSED
    return Attack((post(CHAT, with_field(CHAT, name, raw)),), right)


@KINDS.add(share=0.15)
def many_messages_and_parts(chance: random.Random) -> Attack:
    part = {"type": "text", "text": "x"}
    messages = [{"role": "user", "content": [part] * 60} for _ in range(4000)]
    return Attack((post(CHAT, {"messages": messages, "max_tokens": 1}),), SERVED)


@KINDS.add(share=0.3)
def large_maps(chance: random.Random) -> Attack:
    bias = {str(number): 1 for number in range(chance.choice([1025, 200_000]))}
    return Attack((post(COMPLETIONS, {"prompt": "x", "max_tokens": 1, "logit_bias": bias}),))


@KINDS.add(share=0.3)
def digits_without_an_end(chance: random.Random) -> Attack:
    digits = chance.choice("19") * chance.choice([4301, 100_000, 4_000_000])
    raw = chance.choice([digits, "-" + digits, "0." + digits + "e999", "1e" + digits])
    name = chance.choice(["max_tokens", "seed", "n", "temperature", "prompt"])
    body = with_field(COMPLETIONS, name, raw)
    # `0.111…` is a valid temperature, whatever its length.
    return Attack((post(COMPLETIONS, body),), SERVED if "." in raw else Right.REFUSED)


@KINDS.add(share=0.3)
def large_answers(chance: random.Random) -> Attack:
    """Make valid requests whose answers are many times their size."""
    body: dict[str, Any] = chance.choice(
        [
            {"prompt": [5], "max_tokens": 150, "n": 16, "logprobs": 20, "ignore_eos": True},
            {"prompt": [5, 6, 7] * 1000, "max_tokens": 1, "prompt_logprobs": 20},
            {"prompt": [5, 6, 7] * 1000, "max_tokens": 1, "echo": True, "logprobs": 20},
            {"prompt": [[5]] * 128, "max_tokens": 50, "ignore_eos": True},
        ]
    )
    stream = chance.random() < 0.3 and "prompt_logprobs" not in body
    return Attack((post(COMPLETIONS, body | {"stream": stream}),), SERVED)


@KINDS.add(share=0.3)
def large_tokenise_and_detokenise(chance: random.Random) -> Attack:
    """Make valid requests for the tokens of a long text, or for the text of many tokens."""
    if chance.random() < 0.5:
        body: dict[str, Any] = {"tokens": [chance.randrange(3, 60) for _ in range(1_000_000)]}
        return Attack((post("/detokenize", body),), SERVED)
    text = chance.choice([TEXT, "x", "🦊"])
    body = {"prompt": text * (2_000_000 // len(text.encode())), "return_token_strs": True}
    return Attack((post("/tokenize", body),), SERVED)


@KINDS.add(share=0.15)
def many_questions(chance: random.Random) -> Attack:
    """Make questions about a text that each of their prompts has in full."""
    text = TEXT * (chance.choice([1_000, 100_000, 6_000_000]) // len(TEXT))
    question = {"type": "predicate", "instructions": "Is there a dog?"}
    return Attack((post("/v1/decisions", {"input": text, "questions": [question] * 64}),), SERVED)


@KINDS.add(share=0.15)
def tools_in_namespaces(chance: random.Random) -> Attack:
    """Make functions that each have the description of their namespace, and many names."""
    names = [f"function{number}" for number in range(chance.choice([512, 5_000]))]
    functions = [{"type": "function", "name": name, "parameters": {}} for name in names]
    space = {"type": "namespace", "name": "n", "description": "d" * 200_000, "tools": functions}
    return Attack((post("/v1/responses", {"input": "x", "tools": [space]}),))


@KINDS.add(share=0.15)
def grammars_in_texts(chance: random.Random) -> Attack:
    """Make schemas that are text within JSON, and are read when the body has been."""
    value: Any = chance.choice(["[" * 100_000, '{"a":' * 50_000, "(" * 100_000, {"a": 10**30}])
    grammar = {"type": chance.choice(["json", "regex"]), "value": value}
    body = {"inputs": "x", "parameters": {"grammar": grammar, "max_new_tokens": 1}}
    return Attack((post(chance.choice(["/", "/generate"]), body),))


@KINDS.add(share=0.15)
def chunks_of_one_token(chance: random.Random) -> Attack:
    """Make a text whose every token is a chunk with a vector of its own."""
    body = {
        "input": TEXT * chance.choice([10, 1_000, 100_000]),
        "late_chunking_params": {"chunk_size": 1},
    }
    return Attack((post("/v1/embeddings", body),), SERVED)


@KINDS.add(share=0.3)
def wrong_predictions(chance: random.Random) -> Attack:
    """Predict long texts that no answer follows, each other ones, so that drafts of them are lost.

    Some have more tokens than any answer.
    """
    words = [*{*TEXT.split()}]
    count = chance.choice([3, 300, 2_000, 200_000])
    text = " ".join(chance.choices(words, k=count))
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "prediction": {"type": "content", "content": text},
        "max_tokens": chance.choice([1, 30]),
        "ignore_eos": True,
    }
    return Attack((post(CHAT, body),), SERVED)
