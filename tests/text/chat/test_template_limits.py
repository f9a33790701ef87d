"""A hostile template reaches nothing, and its size and its output are limited.

Templates that take time or memory are the subject of `test_prompt_pool.py` in
`tests/workers`.
"""

from __future__ import annotations

import pytest

from octavo.text.chat.messages import ChatTemplateError
from octavo.text.chat.template import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


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
def test_the_sandbox_has_no_way_out(escape: str) -> None:
    # A forbidden attribute is undefined, like one that does not exist: it renders as nothing, and
    # using it is an error.
    template = ChatTemplate(escape)
    try:
        assert template.render(MESSAGES) in ("", "[Undefined]")
    except ChatTemplateError:
        return
    used = escape.replace(" }}", ".x.x }}")
    with pytest.raises(ChatTemplateError):
        ChatTemplate(used).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in %}",
        "{{ 'x' ",
        "{% nothing %}",
        "{{" + "(" * 3000 + ")" * 3000 + "}}",
        "{{ x }}" + "x" * (1 << 18),
    ],
    ids=["syntax", "unclosed", "unknown tag", "too deep", "too long"],
)
def test_an_invalid_template_is_rejected_when_it_is_compiled(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source)


def test_the_compiler_evaluates_nothing() -> None:
    """Compiled templates are kept, so the compiler must not build large constants."""
    for constant in (
        "9 ** (9 ** 9)",
        "'x' * 10 ** 11",
        "'x' | center(10 ** 11)",
        "'%*d' % (9**9, 1)",
    ):
        shown = f"{{{{ {constant} }}}}{{% set x = {constant} %}}"
        assert ChatTemplate(f"{{% if not messages %}}{shown}{{% endif %}}").render(MESSAGES) == ""


def test_too_many_nested_loops_are_rejected() -> None:
    depth = 30
    source = "{% for x in messages %}" * depth + "{% endfor %}" * depth
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ 'x' * 10 ** 18 }}",
        "{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}",
    ],
    ids=["much output", "a long range", "much memory", "deep recursion"],
)
def test_excess_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render(MESSAGES)


def test_deeply_nested_data_is_rejected() -> None:
    nested: object = "x"
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(ChatTemplateError, match="nested deeper"):
        ChatTemplate("{{ x }}").render(MESSAGES, variables={"x": nested})


def test_only_data_reaches_a_template() -> None:
    with pytest.raises(ChatTemplateError, match="cannot hold object"):
        ChatTemplate("{{ messages }}").render([{"role": "user", "content": object()}])
