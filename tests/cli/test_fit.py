"""`octavo fit` computes the memory an engine takes, and whether it fits."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from octavo.cli import main
from octavo.cli.commands import FAILED, OK
from octavo.observe.memory_bill import RANK_BYTES


def told_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["fit", *words, "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_bill(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", tiny, "--memory", "1GiB", "--max-num-seqs", "4"]) == OK
    text = capsys.readouterr().out
    assert "LlamaForCausalLM, 2 layers, up to 128 tokens" in text
    assert "4 of 128 tokens (--max-num-seqs)" in text
    assert "It fits, with " in text


def test_as_json(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    words: tuple[str, ...] = (tiny, "--memory", "1GiB", "--max-num-seqs", "4")
    words += ("--backend", "torch", "--dtype", "float32")
    told = told_of(capsys, *words)
    assert told["fits"] is True
    assert told["weights"] == sum(told["stored"].values())
    assert told["kv_token"] == 2 * 2 * 2 * 8 * 4
    assert told["kv_cache"] == (4 * 8 + 1) * told["kv_block"]
    assert told["sequences_of_max_model_len"] == 4
    halved = told_of(capsys, *words[:-1], "bfloat16")
    assert halved["weights"] == told["weights"] // 2
    assert halved["kv_token"] == told["kv_token"] / 2


def test_engines_divide_the_memory(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (tiny, "--memory", "2GiB", "--max-num-seqs", "100000")
    one, two = told_of(capsys, *words), told_of(capsys, *words, "-dp", "2")
    assert "engines" not in one
    assert (two["engines"], two["fits"]) == (2, True)
    assert 0 < 2 * two["kv_cache"] < one["kv_cache"]
    assert main(["fit", *words, "-dp", "2"]) == OK
    assert "2 engines" in capsys.readouterr().out
    size = str(one["kv_cache"])
    assert told_of(capsys, *words, "--kv-cache-memory-bytes", size)["fits"]
    assert not told_of(capsys, *words, "--kv-cache-memory-bytes", size, "-dp", "2")["fits"]


def test_engines_of_a_cluster_do_not_divide_a_machine(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (tiny, "--memory", "2GiB", "--max-num-seqs", "100000")
    elsewhere = ("-dp", "8", "--data-parallel-backend", "ray")
    assert told_of(capsys, *words, *elsewhere) == told_of(capsys, *words)


def test_further_ranks_take_little_memory(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = (tiny, "--memory", "2GiB", "--max-num-seqs", "4")
    one, three = told_of(capsys, *words), told_of(capsys, *words, "-tp", "3")
    assert "ranks" not in one
    assert (three["ranks"], three["fits"]) == (2 * RANK_BYTES, True)
    assert three["weights"] == one["weights"]
    assert main(["fit", *words, "-tp", "3"]) == OK
    assert "of 2 more; each has its part of the weights" in capsys.readouterr().out
    assert not told_of(capsys, tiny, "--memory", "600MiB", "-tp", "3")["fits"]


def test_what_does_not_fit(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["fit", tiny, "--memory", "100MB"]) == FAILED
    told = capsys.readouterr().out
    assert "It does not fit: there is not enough memory" in told
    assert "set --kv-cache-memory-bytes" in told
    assert "512 MiB that are kept free" in told
    assert "--dtype" not in told
    assert main(["fit", tiny, "--memory", "100MB", "--backend", "torch"]) == FAILED
    assert "a smaller model or --dtype=bfloat16" in capsys.readouterr().out
    refused = told_of(capsys, tiny, "--memory", "1GiB", "--max-model-len", "99999")
    assert refused["fits"] is False
    assert "--max-model-len=99999 is more than the 128 positions" in str(refused["problem"])


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--kv-cache-memory-bytes", "2GiB"), ("--num-gpu-blocks-override", "2000000")],
)
def test_a_cache_that_is_asked_for_must_fit_too(
    tiny: str, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    words = (tiny, "--memory", "1GiB", "--max-num-seqs", "1000000", flag, value)
    assert main(["fit", *words]) == FAILED
    told = capsys.readouterr().out
    assert f"lower {flag}, or leave it out" in told
    assert "It fits" not in told
    refused = told_of(capsys, *words)
    assert refused["fits"] is False
    assert refused["kv_cache"] > refused["free"]
    assert "1 GiB are free" in refused["problem"]


def test_it_needs_no_torch(tiny: str) -> None:
    program = (
        "import sys; from octavo.cli import main; code = main(sys.argv[1:]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, "fit", tiny]
    assert subprocess.run(command, capture_output=True, check=False).returncode == OK
