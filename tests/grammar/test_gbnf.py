"""llama.cpp's grammars in Lark's syntax: which texts they allow, and what is refused."""

from __future__ import annotations

import pytest

from octavo.core.structured_outputs import ShapeError, StructuredOutputsParams
from octavo.grammar.shapes import grammar_of
from tests.grammar.json_schema.walks import accepts, matcher_of

JSON = r"""
# any JSON object
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws  # of values

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
CHESS = r"""
root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""
CASES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (JSON, ("{}", '{"a": [1, -2.5e1, true, "x\\n"]}', '{ "a": {"b":null}}'), ("{", "[1]", '{"a"}')),
    (CHESS, ("1. e4 e5\n2. Nf3 O-O\n",), ("1. e4 e5\n", "1. e9 e5\n2. a1 a1\n")),
    ('root ::= ("yes" | "no") "!"?', ("yes", "no!"), ("maybe", "yes!!")),
    ('root ::= item+\nitem ::= "- " [^\\n]+ "\\n"', ("- a\n- b\n",), ("- \n", "")),
    ('root ::= "a" "" ( | "b")', ("a", "ab"), ("b", "")),
    ('root ::= "(" root ")" | ""', ("", "(())"), ("(", ")(")),
    ('root ::= "x"{2,3} y{2} z{1,}\ny ::= "y"\nz ::= "z"', ("xxyyz", "xxxyyzz"), ("xyyz", "xxyy")),
    ('root ::= [一-龥]+ "。"', ("中文。",), ("a。", "中")),
    (r'root ::= "\x41\u00e9\U0001F600\t\"" [\]\\\-]', ('Aé😀\t"]', 'Aé😀\t"-'), ('Aé😀\t"a',)),
    ('root ::= . . "a"', ("xya", "é\na"), ("xa",)),
    ('my-rule ::= "a"\nroot ::= my-rule MyRule\nMyRule ::= "b"', ("ab",), ("a",)),
    ('root ::= [/"#] "/" "//"', ("////", '"///'), ("a///",)),
]


@pytest.mark.parametrize(("grammar", "right", "wrong"), CASES)
def test_a_grammar_allows_its_texts(
    grammar: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    matcher = matcher_of(StructuredOutputsParams(grammar=grammar))
    assert [text for text in right if not accepts(matcher, text)] == []
    assert [text for text in wrong if accepts(matcher, text)] == []


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('a ::= "b"', "no rule 'root'"),
        ("root ::= a", "rule 'a' is not defined"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= "a', "line 1: a quote or a bracket is not closed"),
        ("root ::= [a", "not closed"),
        ("root ::= [b-a]", "backwards"),
        (r'root ::= "\q"', "no known escape"),
        (r'root ::= "\ud800"', "no character"),
        (r'root ::= "\x4"', "no known escape"),
        (r'root ::= "\x4a\u00"', "no known escape"),
        ('root ::= "a"{3,2}', "backwards"),
        ('root ::= "a"{99999999}', "more often than"),
        ('root ::= "a"{x}', "expected numbers"),
        ('root ::= ("a"', "a ) is missing"),
        ('root ::= "a" )', "belongs to nothing"),
        ("root ::= " + "(" * 100 + '"a"' + ")" * 100, "more than 64 deep"),
        ("root ::= root", "no text has this shape"),
        ('x = "a"\nroot ::= "b"', "::= is missing behind 'x'"),
        ("root ::= <think>", "a token's number"),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_line(grammar: str, words: str) -> None:
    with pytest.raises(ShapeError) as caught:
        grammar_of(StructuredOutputsParams(grammar=grammar))
    assert caught.value.field == "grammar"
    assert words in caught.value.what


def test_a_token_is_named_by_its_number() -> None:
    grammar = grammar_of(StructuredOutputsParams(grammar='root ::= <[70]> "a"'), 300).text
    assert "<[70]>" in grammar
    with pytest.raises(ShapeError):
        grammar_of(StructuredOutputsParams(grammar='root ::= <[700]> "a"'), 300)
