"""Measures the engine: `profile` the phases of a step, `speculation` what drafts gain.

`profile MODEL` shows the time of a step, phase by phase. `speculation PROMPTS MODEL` answers the
prompts of a file with each way to draft, one engine after the other, and shows how fast each was.
A line of the file is a text, or a JSON object with `messages` or `prompt`; it may have a
`prediction`. `octavo bench serve`, `offline` and `latency` are commands of their own, for a server
and for whole answers.

The step decodes --streams sequences after --context tokens each, or with --prompt it processes one
chunk of a prompt. Times are those of the calling thread, as medians over the steps. A phase begins
at a barrier; waiting for other threads is listed separately. The bytes and operations of a phase
are counted from its shapes, and compared with the peak rates of this machine, which are measured in
the same run with the same threads, reading between the steps. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.engine_options import (
    add_engine_options,
    engine_arguments,
    engine_options,
    model_of,
)
from octavo.cli.output import size, table
from octavo.cli.parsing import Parser, UsageError
from octavo.options.values import seconds

if TYPE_CHECKING:
    from octavo.backends.native.backend import PeakRates
    from octavo.bench.profile import Line, Profile
    from octavo.bench.speculation import Gain
    from octavo.options.speculation import SpeculativeConfig

_MUCH_WAITING = 1 / 3  # of a step
_HEAD = (
    "PHASE", "INSTRUCTION", "CALLS", "WAIT", "MS", "SHARE", "MB", "GB/S", "", "GOP/S", "",
)  # fmt: skip


def add_arguments(parser: Parser) -> None:
    """Add the options of the measurement and of the engine."""
    parser.add_argument(
        "what", metavar="profile", nargs="?", help="the time of a step, or `speculation`"
    )
    parser.add_argument(
        "model_word", metavar="MODEL", nargs="?", help="the model, or a file of prompts"
    )
    parser.add_argument("last_word", metavar="MODEL", nargs="?", help="the model, of speculation")
    parser.add_argument(
        "--tokens", type=int, default=256, metavar="COUNT", help="of each answer (256)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="NUMBER", help="of speculation (0)"
    )
    parser.add_argument("--streams", type=int, metavar="COUNT", help="sequences that decode (1)")
    parser.add_argument(
        "--context", type=int, default=128, metavar="TOKENS", help="before the step (128)"
    )
    parser.add_argument(
        "--prompt", type=int, metavar="TOKENS", help="a chunk of a prompt, instead of decoding"
    )
    parser.add_argument(
        "--steps", type=int, default=20, metavar="COUNT", help="how many to measure (20)"
    )
    parser.add_argument(
        "--peak-seconds",
        type=seconds,
        default=0.5,
        metavar="SECONDS",
        help="for the measurement of each peak rate (0.5)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, in seconds and bytes")
    add_engine_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure the step and print the table, or JSON."""
    if arguments.what == "speculation":
        return _speculation(arguments)
    _check_words(arguments.what, arguments.model_word)
    if arguments.streams is not None and arguments.prompt is not None:
        raise UsageError("--prompt is a chunk of one sequence, and --streams decode; give only one")
    least = {"streams": 1, "context": 0, "prompt": 1, "steps": 1}
    for name, smallest in least.items():
        value = getattr(arguments, name)
        if value is not None and value < smallest:
            raise UsageError(f"--{name} {value} must be at least {smallest}")
    from octavo.backends.native.work import SequenceSize
    from octavo.bench.profile import profile

    if arguments.prompt is None:
        sequences = [SequenceSize(arguments.context, 1)] * (arguments.streams or 1)
    else:
        sequences = [SequenceSize(arguments.context, arguments.prompt)]
    asked = engine_arguments(arguments)
    found = profile(asked, sequences, arguments.steps, arguments.peak_seconds)
    if arguments.json:
        import json

        from msgspec import to_builtins

        sys.stdout.write(json.dumps(to_builtins(found), indent=1) + "\n")
    else:
        sys.stdout.write(as_text(asked.model, found))
    return 0


def _speculation(arguments: argparse.Namespace) -> int:
    """Compare the ways to draft, and print a table or JSON."""
    if arguments.model_word is None:
        raise UsageError("the prompts are not named; write: octavo bench speculation PROMPTS MODEL")
    if arguments.streams is not None and arguments.streams < 1:
        raise UsageError(f"--streams {arguments.streams} must be at least 1")
    from octavo.bench.speculation import compare, read_prompts
    from octavo.core.sampling_params import SamplingParams

    prompts = read_prompts(Path(arguments.model_word))
    arguments.model_word = arguments.last_word
    options = engine_options(arguments)
    drafter = way_of(options.pop("speculative_config", None))
    sampling = SamplingParams(
        temperature=arguments.temperature, max_tokens=arguments.tokens, seed=0
    )
    streams = arguments.streams or 1
    gains = compare(model_of(arguments), options, prompts, sampling, streams, drafter)
    if arguments.json:
        import json
        from dataclasses import asdict

        sys.stdout.write(json.dumps([asdict(gain) for gain in gains], indent=1) + "\n")
    else:
        sys.stdout.write(as_gains(gains))
    return 0


def way_of(given: object) -> SpeculativeConfig | None:
    """Return the settings of a way that needs some; the others are measured without any."""
    if given is None:
        return None
    from octavo.options.speculation import CUSTOM_CLASS, MTP, WITH_MODEL, read_speculative_config

    settings = read_speculative_config(given)
    if settings.method not in (*WITH_MODEL, MTP, CUSTOM_CLASS):
        raise UsageError(
            "every way to draft that needs the prompts alone is measured; leave out the flags of "
            "speculation, but those of others, as in --speculative-config.model MODEL or "
            "--spec-method mtp"
        )
    return settings


def as_gains(gains: Sequence[Gain]) -> str:
    """Format the table of what each way to draft gains."""
    rows: list[tuple[str, ...]] = [
        ("DRAFTS BY", "TOKENS/S", "TIMES AS FAST", "TOKENS A STEP", "DRAFTS", "ACCEPTED")
    ]
    for gain in gains:
        speed = gain.tokens / gain.seconds if gain.seconds else 0.0
        per_step = 1.0 + gain.accepted / gain.steps if gain.steps else 1.0
        cells = (f"{speed:,.1f}", f"{gain.ratio:.2f}", f"{per_step:.2f}", f"{gain.drafts:,}")
        rows.append((gain.way, *cells, f"{gain.accepted:,}"))
    return table(rows, right=(1, 2, 3, 4, 5))


def _check_words(what: str | None, model: str | None) -> None:
    """Refuse a command line without the measurement's name or the model's."""
    if what == "profile" and model is not None:
        return
    usage = "write: octavo bench profile MODEL"
    if what is None:
        raise UsageError(f"neither the measurement nor the model is named; {usage}")
    if what == "profile":
        raise UsageError(f"the model is not named; {usage}")
    known = "there are serve, offline, latency, profile and speculation"
    if model is None:
        usage = f"write: octavo bench profile {what}"
    raise UsageError(f"{what!r} is not a measurement: {known}; {usage}")


def as_text(model: str, found: Profile) -> str:
    """Format the table, with the peak rates above it."""
    peaks, total = found.peak_rates, found.native_seconds
    unit = "row" if found.rows == 1 else "rows"
    head = (
        f"{model}: a step of {found.rows:,} {unit} takes {1e3 * found.step_seconds:.3f} ms (the "
        f"median); {found.threads} threads, {found.tier}\n"
        f"A plain loop reads these weights at {peaks.read / 1e9:.1f} GB/s. This machine computes "
        f"{peaks.int8 / 1e9:,.0f} GOP/s in int8, {peaks.bf16 / 1e9:,.0f} in bf16, "
        f"{peaks.float / 1e9:,.0f} in fp32.\n"
    )
    head += "".join(f"A cold panel of {line}\n" for line in found.kernels)
    head += f"The weights take {size(found.weight_bytes)}."
    if found.huge_page_bytes is not None:
        huge, own = size(found.huge_page_bytes), size(found.own_bytes)
        head += f" {huge} of this process's own {own} are in huge pages."
    head += "\n\n"
    rows: list[tuple[str, ...]] = [_HEAD]
    last = 0
    for line in found.lines:
        number = "" if line.phase == last else str(line.phase)
        rows.append((number, *_cells(line, peaks, total)))
        last = line.phase
    work = total - found.waited_seconds
    share = f"{work / total:.0%}" if total else ""
    sums = (f"{1e3 * found.waited_seconds:.3f}", f"{1e3 * work:.3f}", share)
    rows.append(("", "total", "", *sums, *[""] * (len(_HEAD) - 3 - len(sums))))
    return head + table(rows, right=tuple(range(2, len(_HEAD)))) + _summary(found)


def _summary(found: Profile) -> str:
    """Describe what the shares refer to, and the time outside of all phases."""
    total = found.native_seconds
    waited = found.waited_seconds / total if total else 0.0
    outside = 1e3 * found.outside_seconds
    text = (
        f"\nShares are of the {1e3 * total:.3f} ms of all phases; {waited:.0%} of it is waiting "
        f"for other threads. {outside:.3f} ms of the step are outside of any phase: Python, and "
        "the call of the native code. Each figure is a median over the steps, so that together "
        "they may be less than the median step.\n"
    )
    if found.waited_seconds > found.step_seconds * _MUCH_WAITING:
        text += (
            "Warning: more than a third of the step is waiting for other threads; something else "
            "may be running, which these times then include.\n"
        )
    return text


def _cells(line: Line, peaks: PeakRates, total: float) -> tuple[str, ...]:
    waited = f"{1e3 * line.waits:.3f}" if line.waits > 0.5e-6 else ""
    cells = [line.text, f"{line.calls:,}", waited, f"{1e3 * line.seconds:.3f}"]
    cells.append(f"{line.seconds / total:.0%}" if total else "")
    if not line.seconds or not line.bytes_read:
        return (*cells, "", "", "", "", "")
    read, computed = line.bytes_read / line.seconds, line.operations / line.seconds
    peak = getattr(peaks, line.numbers) if line.numbers else 0.0
    return (
        *cells,
        f"{line.bytes_read / 1e6:.2f}",
        f"{read / 1e9:.1f}",
        f"({read / peaks.read:.0%})",
        f"{computed / 1e9:,.0f}" if line.operations else "",
        f"({computed / peak:.0%})" if peak else "",
    )
