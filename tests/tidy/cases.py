"""Planted offences for each rule, and decent code that looks alike."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.tidy import core_rules, prose_rules, safety_rules, set_rule, size_rules
from tests.tidy.source import Rule, Source

CORE = "octavo/core/plan.py"
OUTSIDE = "octavo/client/client.py"


@dataclass(frozen=True)
class Case:
    """A rule that must object to each of `bad` exactly once, and to none of `good`."""

    rule: Rule
    bad: tuple[str, ...]
    good: tuple[str, ...]
    path: str = CORE

    def source(self, text: str) -> Source:
        """Return the text as a file at this case's path."""
        return Source(PurePosixPath(self.path), text)


def lines(count: int) -> str:
    """Return a file of `count` lines."""
    return "pass\n" * count


def function(count: int) -> str:
    """Return a function of `count` lines."""
    return "@cached\ndef long():\n" + "    pass\n" * (count - 1)


SIZE_CASES = (
    Case(size_rules.short_file, bad=(lines(501),), good=(lines(500), "")),
    Case(size_rules.short_file, (lines(801),), (lines(800),), "csrc/kernels/gemm.cpp"),
    Case(size_rules.short_file, (lines(801),), (lines(800),), "octavo/backends/torch/triton/mm.py"),
    Case(
        size_rules.short_lines,
        bad=("# " + "x" * 99, "\n# " + "×" * 99 + "\n"),
        good=("# " + "x" * 98, "# " + "×" * 98),
    ),
    Case(
        size_rules.short_functions,
        bad=(function(71), "async " + function(71).removeprefix("@cached\n")),
        good=(function(70), lines(71)),
    ),
    Case(
        size_rules.says_its_duty,
        bad=("", "import math\n", '"""No stop at the end"""\n', "# A comment says it.\n"),
        good=('"""Says it."""\n', '"""Says it over\ntwo lines. And then more"""\n'),
    ),
)

SAFETY_CASES = (
    Case(
        safety_rules.no_code_as_data,
        bad=(
            "import pickle",
            "import os, marshal",
            "import cloudpickle.compat as harmless",
            "from pickle import loads",
            "def f(text):\n    return eval(text)",
            "exec('x = 1')",
            "run = exec",
            "code = compile('x', 'x', 'exec')",
            "import builtins\nbuiltins.eval('1')",
            "import builtins as b\nb.exec('1')",
            "__import__('os')",
            "import torch\nweights = torch.load(path)",
            "import torch as t\nweights = t.load(path, weights_only=True)",
            "from torch import load",
            "import yaml\nyaml.load(text)",
            "import numpy\nnumpy.load(path, allow_pickle=True)",
        ),
        good=(
            "import re\nPATTERN = re.compile('x')",
            "import json\njson.load(file)",
            "import yaml\nyaml.safe_load(text)",
            "import numpy\nnumpy.load(path, allow_pickle=False)",
            "model.eval()",
            "'exec and eval and pickle'",
            "import octavo.exec.inline",
        ),
        path=OUTSIDE,
    ),
    Case(
        safety_rules.patterns_end_at_the_end,
        bad=(
            "re.compile(r'^[a-z]+$')",
            "re.compile(r'a$|b', re.DOTALL)",
            "re.match(f'{name}$', text)",
            "re.search(rb'x$', data)",
            "re.compile('[$]$')",
            "Meta(pattern='^a$')",
        ),
        good=(
            r"re.compile(r'[a-z]+\Z')",
            r"re.compile(r'\$[$]')",
            "re.fullmatch('[^$]', text)",
            "'a$'.strip('$')",
        ),
        path=OUTSIDE,
    ),
    Case(safety_rules.no_code_as_data, ("import pickle",), ("import json",), "tests/sim/world.py"),
    Case(
        safety_rules.no_code_as_data,
        ("import pickle", "run = exec"),
        ("import marshal",),
        "octavo/bytecode.py",
    ),
    Case(
        safety_rules.environment_in_one_place,
        bad=(
            "import os\nHOME = os.environ['HOME']",
            "import os\nHOME = os.getenv('HOME')",
            "import os.path\nos.environ.get('HOME')",
            "import os as system\nsystem.putenv('A', 'b')",
            "from os import environ",
            "from os import *",
        ),
        good=("import os\nos.getpid()", "monkeypatch.setenv('A', 'b')", "from os import path"),
        path=OUTSIDE,
    ),
    Case(
        safety_rules.environment_in_one_place,
        bad=(),
        good=("import os\nHOME = os.environ.get('HOME')",),
        path="octavo/env.py",
    ),
    Case(
        safety_rules.no_wall_clock,
        bad=(
            "import time\nbegan = time.time()",
            "import time as clock\nbegan = clock.time_ns()",
            "from time import time",
            "from datetime import datetime\nnow = datetime.now()",
            "import datetime\nnow = datetime.datetime.utcnow()",
        ),
        good=("import time\nbegan = time.monotonic()", "from time import perf_counter"),
        path=OUTSIDE,
    ),
    Case(safety_rules.no_wall_clock, (), ("import time\ntime.time()",), "octavo/serving/server.py"),
    Case(safety_rules.no_wall_clock, (), ("import time\ntime.time()",), "tests/api/tiny.py"),
)

CORE_CASES = (
    Case(
        core_rules.core_imports_only_computing,
        bad=(
            "import time",
            "from time import monotonic",
            "import random",
            "import os.path",
            "import threading",
            "import asyncio",
            "import datetime",
            "import logging",
            "import torch",
            "from numpy import array",
            "import octavo.corelike",
            "from octavo.options.engine import Config",
            "from . import plan",
            "def f():\n    import secrets",
            "if TYPE_CHECKING:\n    from octavo.exec import Executor",
        ),
        good=(
            "from __future__ import annotations",
            "from collections.abc import Sequence",
            "import hashlib, hmac",
            "from octavo.core.plan import StepPlan",
            "import octavo.core",
        ),
    ),
    Case(core_rules.core_imports_only_computing, (), ("import time",), OUTSIDE),
    Case(
        core_rules.core_calls_nothing_impure,
        bad=("print('x')", "key = hash(request)", "order = id(block)", "open('trace')"),
        good=("request.id", "hashing.hash(key)", "def __hash__(self): ...", "id: int = 3"),
    ),
    Case(
        set_rule.core_keeps_no_sets,
        bad=(
            "seen = {1, 2}",
            "seen = {x for x in y}",
            "seen = set()",
            "seen: set[int]",
            "seen: list[int] = field(default_factory=set)",
            "from collections.abc import Set",
            "for x in a.keys() - b.keys(): ...",
            "for x in {1, 2}: ...",
            "stop = frozenset(names)",
            "for x in frozenset(names): ...",
            "order = sorted(frozenset(names), key=length)",
            "names: frozenset[str]",
            "def f(names: frozenset) -> None: ...",
            "both = {1: 0} | {x for x in y}",
            "first = (a.keys() & b).pop()",
            "first = list({a, b})",
            "number = {a, b}.pop() == 1",
        ),
        good=(
            "if status in {WAITING, RUNNING}: ...",
            "if status not in {WAITING}: ...",
            "if len(set(slots)) < len(slots): ...",
            "assert {*a, *b} == {len(x) for x in y}",
            "assert not held.keys() & set(free)",
            "assert not held.keys() & other.keys()",
            "assert set(freed) <= set(free) | set(held)",
            "stop: frozenset[int] = frozenset(ids)",
            "stop: frozenset[int] | None",
            "def f(stop: frozenset[int] = frozenset()) -> frozenset[int]:\n return frozenset(stop)",
            "Params(stop=frozenset(ids))",
            "request.check(frozenset(ids))",
            "seen = {1: None}",
            "seen = {x: None for x in y}",
            "for key in table.keys(): ...",
        ),
    ),
    Case(set_rule.core_keeps_no_sets, (), ("seen = {1, 2}",), OUTSIDE),
    Case(
        core_rules.core_hides_no_branch,
        bad=("if x:  # pragma: no cover\n    pass", "if x:  # pragma: no branch\n    pass"),
        good=("# no cover for this pragmatic shortcut",),
    ),
)


def documented(text: str, head: str = "def answer():") -> str:
    """Return a definition with this docstring."""
    return f'{head}\n    """{text}"""\n'


# Built from parts, since the rule covers this file too.
BANNED, PERSON, RELATIVE = "told", "nobody", "whoever"

PROSE_CASES = (
    Case(
        prose_rules.verb_first,
        bad=(documented("The number of tokens there are."), documented("Whether it has ended.")),
        good=(
            documented("Return the number of tokens."),
            documented("The number of tokens.", "@property\ndef num_tokens(self):"),
            "def answer():\n    pass\n",
        ),
    ),
    Case(
        prose_rules.noun_first,
        bad=(
            documented("What is known of it.", "class Answer:"),
            documented("Of each its own one."),
        ),
        good=(documented("An answer in parts.", "class Answer:"),),
    ),
    Case(
        prose_rules.enough_words,
        bad=(documented("Return it."), documented("An answer.", "class Answer:")),
        good=(documented("Return all that is known."),),
    ),
    Case(
        prose_rules.plain_words,
        bad=(
            documented(f"Return what it was {BANNED} before."),
            f"x = 1  # {PERSON} reads it\n",
            f'raise ValueError("{RELATIVE} asks")\n',
        ),
        good=(f"{BANNED} = 1\n", f'x = "{BANNED}"\n', "# It is reported once.\n"),
    ),
    Case(prose_rules.plain_words, (f"// {BANNED} by the caller\n",), ("// given\n",), "csrc/a.cpp"),
)

CASES = SIZE_CASES + SAFETY_CASES + CORE_CASES + PROSE_CASES
# A rule without a planted offence would not run at all.
RULES: tuple[Rule, ...] = tuple(dict.fromkeys(case.rule for case in CASES))
