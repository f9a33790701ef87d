"""`octavo quantize` from the command line: a model, its report, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.api.text_model import load_tokenizer
from octavo.cli import main
from octavo.cli.commands import MODEL, OK, USAGE
from octavo.cli.quantize import default_directory
from octavo.loader import resolve
from octavo.quantize import report
from octavo.quantize.loaded import LoadedModel
from octavo.quantize.report import compare
from tests.api.tiny import TEXTS


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text file of a few hundred tokens."""
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXTS * 3))
    return path


def test_quantise_serve_compare(
    tiny: str,
    text: Path,
    tmp_path: Path,
    pipe: Callable[[bytes], None],  # standard input is empty
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["quantize", tiny, "--to", "fp8", "-o", str(tmp_path / "made"), "--threads", "1"]
    assert main(words) == OK
    shown = capsys.readouterr()
    assert "14 matrices are fp8" in shown.out
    assert "100 % quantised" in shown.err
    run = ["run", str(tmp_path / "made"), "A day", "--max-tokens", "3", "--num-threads", "1"]
    assert main(run) == OK
    capsys.readouterr()
    assert main([*words, "--report", str(text)]) == OK
    shown = capsys.readouterr()
    assert "only compared" in shown.err
    lines = dict(line.split("  ", 1) for line in shown.out.splitlines())
    assert 0 < float(lines["mean KL divergence"].split()[0]) < 0.1
    assert main(words) == USAGE
    assert "there already" in capsys.readouterr().err


def test_the_figures_are_those_of_their_definition(tiny: str, tmp_path: Path, text: Path) -> None:
    """The models are run again here, in whole windows, and all is summed in 64 bits."""
    main(["quantize", tiny, "--to", "fp8", "-o", str(tmp_path / "made")])
    one, other = resolve(tiny), resolve(str(tmp_path / "made"))
    found = compare(one, other, text.read_text(), lambda done, total: None)
    tokens = load_tokenizer(one).encode(text.read_text(), add_special_tokens=False)
    models = [LoadedModel(one), LoadedModel(other)]
    size = models[0].window
    assert size == 128
    sums = np.zeros(4)
    for start in range(0, len(tokens), size):
        window = tokens[start : start + size]
        if len(window) < 2:
            continue
        p, q = (
            each.log_probabilities(window, 0, len(window) - 1).astype(np.float64) for each in models
        )
        rows, following = np.arange(len(window) - 1), window[1:]
        sums += [
            len(rows),
            -p[rows, following].sum(),
            -q[rows, following].sum(),
            (np.exp(p) * (p - q)).sum(),
        ]
    assert found.tokens == sums[0]
    assert found.perplexity == pytest.approx(math.exp(sums[1] / sums[0]), rel=1e-4)
    assert found.other_perplexity == pytest.approx(math.exp(sums[2] / sums[0]), rel=1e-4)
    assert found.divergence == pytest.approx(sums[3] / sums[0], rel=1e-2)
    assert found.is_whole
    same = compare(one, one, text.read_text(), lambda done, total: None)
    assert same.perplexity == same.other_perplexity
    assert (same.divergence, same.agreement) == (0, 1)


def test_a_long_text_is_read_in_part(
    tiny: str, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MOST_TOKENS", 50)
    found = compare(resolve(tiny), resolve(tiny), text.read_text(), lambda done, total: None)
    assert (found.tokens, found.is_whole) == (49, False)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--to", "q8_0"], USAGE),
        (["--to", "fp8", "--method", "awq", "--calibrate", "{tmp}/text.txt"], USAGE),
        (["--to", "w8a8", "--method", "gptq"], USAGE),  # without a text
        (["--to", "w8a8", "--calibrate", "{tmp}/text.txt"], USAGE),  # without the method
        (["--to", "fp8", "--method", "gptq", "--calibrate", "{tmp}/text.txt"], USAGE),
        (["--to", "fp8", "--threads", "0"], USAGE),
        (["--to", "w4a16"], USAGE),  # 32 inputs are no group of 128
        (["--to", "w8a16", "--group-size", "48"], USAGE),
        (["--to", "fp8", "--report", "{tmp}/none.txt"], 1),
        (["--to", "fp8", "--report", "{tmp}/bytes.txt"], USAGE),
        (["--to", "fp8", "-o", "{tmp}/bytes.txt"], USAGE),
        ([], USAGE),
    ],
)
def test_a_refusal_is_one_line_and_writes_nothing(
    words: list[str], code: int, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bytes.txt").write_bytes(b"\xff")
    (tmp_path / "text.txt").write_text("A text.")
    asked = ["quantize", tiny, "-o", str(tmp_path / "made")]
    assert main([*asked, *(word.format(tmp=tmp_path) for word in words)]) == code
    shown = capsys.readouterr()
    assert shown.err.startswith("octavo quantize: ")
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "made").exists()


def test_a_quantised_model_is_refused_as_such(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = str(tmp_path / "made")
    assert main(["quantize", tiny, "--to", "w8a8", "-o", made]) == OK
    assert main(["quantize", made, "--to", "fp8", "-o", str(tmp_path / "again")]) == MODEL
    assert "quantised already" in capsys.readouterr().err


def test_the_result_is_named_after_the_model(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "org/name": "name-fp8",
        "org/name@main": "name-fp8",
        "a/b/model.dir/": "model.dir-fp8",
        "pypi:package==1.2": "package-1.2-fp8",
        "..": "model-fp8",
        "/": "model-fp8",
    }
    assert {name: default_directory(name, "fp8") for name in names} == names
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", tiny, "--to", "fp8"]) == OK
    (made,) = tmp_path.iterdir()
    assert made.name == f"{Path(tiny).name}-fp8"
    assert "quantization_config" in json.loads((made / "config.json").read_text())
