"""A hostile template ends with an error, soon, and gets at nothing."""

import tracemalloc

import pytest

from octavo.text.chat.budget import ChatTemplateError, TemplateLimitError, TemplateLimits
from octavo.text.chat.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
LIMITS = TemplateLimits(
    template_characters=4096, output_characters=20_000, built_characters=100_000, steps=20_000
)

BOMBS = {
    "repeated text": "{{ 'x' * 1000000000 }}",
    "repeated text, number first": "{{ 1000000000 * 'x' }}",
    "repeated list": "{{ [0] * 1000000000 }}",
    "repeated bytes": "{{ 'x'.encode() * 1000000000 }}",
    "doubling by ~": (
        "{% set n = namespace(s='xx') %}"
        "{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
    ),
    "doubling by +": (
        "{% set n = namespace(s='xx') %}"
        "{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}"
    ),
    "doubling a list": (
        "{% set n = namespace(s=[0]) %}"
        "{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}"
    ),
    "a tree that shares its branches": (
        "{% set n = namespace(s=[0]) %}"
        "{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
    ),
    "loops within loops": (
        "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}"
    ),
    "text in a block": (
        "{% set s %}{% for a in range(15000) %}plain text that is never an expression"
        "{% endfor %}{% endset %}"
    ),
    "text in a macro": (
        "{% macro m() %}plain text that is never an expression{% endmacro %}"
        "{% for a in range(9000) %}{% set s = m() %}{% endfor %}"
    ),
    "calls that double": "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "copies by slicing": (
        "{% set t = 'x' * 9000 %}{% for i in range(90) %}{% set s = t[1:] %}{% endfor %}"
    ),
    "copies by a method": (
        "{% set t = 'x' * 9000 %}{% for i in range(90) %}{% set s = t.upper() %}{% endfor %}"
    ),
    "copies by a filter": (
        "{% set t = 'x' * 9000 %}{% for i in range(90) %}{% set s = t|upper %}{% endfor %}"
    ),
    "pieces by a method": "{{ ('x ' * 2000).split()|length }}",
    "range": "{% for i in range(1000000000) %}{% endfor %}",
    "power": "{{ 10 ** 1000000000 }}",
    "powers": (
        "{% set n = namespace(s=10) %}{% for i in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}"
    ),
    "filter center": "{{ 'x'|center(1000000000) }}",
    "method center": "{{ 'x'.center(1000000000) }}",
    "method ljust": "{{ 'x'.ljust(1000000000) }}",
    "method zfill": "{{ 'x'.zfill(width) }}",
    "expandtabs": "{{ '\t'.expandtabs(1000000000) }}",
    "filter indent": "{{ 'x\nx'|indent(1000000000) }}",
    "indent by text": "{{ ('x\n' * 9000)|indent('y' * 9000) }}",
    "filter wordwrap": "{{ 'x'|wordwrap(1000000000) }}",
    "filter batch": "{{ [1]|batch(1000000000, 0)|list }}",
    "filter slice": "{{ [1]|slice(1000000000)|list }}",
    "filter replace": "{{ ('x' * 9000)|replace('x', 'y' * 9000) }}",
    "method replace": "{{ ('x' * 9000).replace('x', 'y' * 9000) }}",
    "filter join": "{{ range(9000)|join('y' * 9000) }}",
    "method join": "{{ ('y' * 9000).join(['x'] * 900) }}",
    "method join of a generator": "{{ ('y' * 9000).join(range(9000)|map('string')) }}",
    "one text many times": "{% set t = 'x' * 9000 %}{{ [t] * 900 }}",
    "one text many times as JSON": "{% set t = 'x' * 9000 %}{{ ([t] * 900)|tojson }}",
    "long separators in JSON": "{{ ([0] * 900)|tojson(separators=('x' * 20000, ':')) }}",
    "one text in many fields, %": "{% set t = 'x' * 9000 %}{{ ('%(t)s' * 900) % {'t': t} }}",
    "one text in many fields, filter": (
        "{% set t = 'x' * 9000 %}{{ ('%(t)s' * 900)|format(t=t) }}"
    ),
    "one text in many fields, method": "{% set t = 'x' * 9000 %}{{ ('{0}' * 900).format(t) }}",
    "text between all others": "{{ ('x ' * 4000)|wordwrap(1, wrapstring='y' * 9000) }}",
    "format with %": "{{ '%1000000000d' % 1 }}",
    "format with % and *": "{{ '%*d' % (1000000000, 1) }}",
    "filter format": "{{ '%1000000000d'|format(1) }}",
    "method format": "{{ '{:>1000000000}'.format(1) }}",
    "method format, width as argument": "{{ '{:>{}}'.format(1, 1000000000) }}",
    "map to a filter": "{{ ['x']|map('center', 1000000000)|list }}",
    "json indent": "{{ [1]|tojson(indent=1000000000) }}",
    "deep recursion": "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    "much output": "{% for a in range(9000) %}abc{% endfor %}",
}
SHARING = "{% set n = namespace(s=[0]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
SHOWN = (
    "{{ n.s }}",
    "{{ n.s ~ '' }}",
    "{{ n.s|tojson }}",
    "{{ n.s|string }}",
    "{{ n.s|join }}",
    "{{ n.s|upper }}",
    "{{ n.s|replace('a', 'b') }}",
    "{{ 'x'|replace(n.s, 'b') }}",
    "{{ '%s' % n.s }}",
    "{{ '%s'|format(n.s) }}",
    "{{ '{}'.format(n.s) }}",
)
BOMBS["a tree that shares its branches"] = f"{SHARING}{{% endfor %}}{SHOWN[0]}"


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_does_not_go_off(bomb: str) -> None:
    template = ChatTemplate(bomb, limits=LIMITS)
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            template.render(MESSAGES, variables={"width": 1_000_000_000})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # It is refused before it is built, not after.
    assert peak_bytes < 8_000_000


@pytest.mark.parametrize("shown", SHOWN)
def test_a_tree_that_shares_its_branches_is_never_written_out(shown: str) -> None:
    with pytest.raises(TemplateLimitError):
        ChatTemplate(f"{SHARING}{{% endfor %}}{shown}", limits=LIMITS).render(MESSAGES)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''|attr('__class__') }}",
        "{{ [''|attr('__class__')] }}",
        "{{ ['']|map(attribute='__class__')|list }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{x.__class__}'.format_map({'x': ''}) }}",
        "{{ ['{0.__class__}']|map('format', '')|list }}{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ namespace.__init__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{{ dict.__class__ }}",
        "{{ dict.mro() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{% for x in messages %}{{ loop._iterable }}{% endfor %}",
        "{% macro m() %}{% endmacro %}{{ m._func }}",
        "{{ (messages|map('upper')).gi_frame }}",
        "{{ (messages|map('upper')).throw(1) }}",
        "{{ joiner().sep }}",
        "{{ (1).to_bytes(4, 'big') }}",
        "{{ ''.translate({}) }}",
        "{{ lipsum() }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{% extends 'x' %}",
    ],
)
def test_there_is_no_way_out(escape: str) -> None:
    # What is not allowed is undefined, as what does not exist is: it can be written, as nothing,
    # and an error comes as soon as it is used.
    template = ChatTemplate(escape, limits=LIMITS)
    try:
        assert template.render(MESSAGES) in ("", "[Undefined]")
    except ChatTemplateError:
        return
    used = escape.replace(" }}", ".x.x }}")
    with pytest.raises(ChatTemplateError):
        ChatTemplate(used, limits=LIMITS).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in %}",
        "{{ 'x' ",
        "{% nothing %}",
        "{{" + "(" * 3000 + ")" * 3000 + "}}",
        "x" * 5000,
    ],
    ids=["syntax", "unclosed", "unknown tag", "too deep", "too long"],
)
def test_a_template_that_is_not_valid_is_refused_when_it_is_loaded(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, limits=LIMITS)


def test_too_many_nested_loops_are_refused() -> None:
    depth = 30
    source = "{% for x in messages %}" * depth + "{% endfor %}" * depth
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source, limits=LIMITS).render(MESSAGES)


def test_a_budget_is_for_one_rendering() -> None:
    template = ChatTemplate("{% for i in range(15000) %}{% endfor %}done", limits=LIMITS)
    assert [template.render(MESSAGES) for _ in range(3)] == ["done"] * 3


def test_what_is_nested_too_deeply_is_refused() -> None:
    nested: object = "x"
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="nested deeper"):
        ChatTemplate("{{ x }}").render(MESSAGES, variables={"x": nested})


def test_only_data_reaches_a_template() -> None:
    with pytest.raises(ChatTemplateError, match="cannot hold object"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": object()}])
