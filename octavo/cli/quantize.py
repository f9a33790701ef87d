"""Makes a quantised model of a float one, in the formats that vLLM and transformers read too.

Types: w4a16, integers of 4 bits in groups; w8a16 and w8a8, of 8 bits with a scale for each row, and
the latter for activations of 8 bits too; fp8, floats of 8 bits likewise; nvfp4 and mxfp4, floats of
4 bits. Embeddings, norms, the head and routers stay as they are. GGUF files of floats become GGUF
files of q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q4_k_m, q5_k, q5_k_m or q6_k. A command that was
killed or interrupted continues when it is given again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from octavo.cli.engine_options import add_model, model_of
from octavo.cli.output import ProgressLine, size, table
from octavo.cli.parsing import Parser, UsageError

_MOST_TEXT_BYTES = 16 << 20


def add_arguments(parser: Parser) -> None:
    """Add the model, the type, and where the result and the report go."""
    add_model(parser, has_default=False)
    parser.add_argument("--to", metavar="TYPE", required=True, help="the type of the weights")
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        type=Path,
        help="a new directory, or a new GGUF file (the model's name with the type, in the current "
        "directory)",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="COUNT",
        help="inputs that share a scale, 32, 64 or 128: of w4a16 (128), of w8a16 (all of a row)",
    )
    parser.add_argument(
        "--method",
        default="rtn",
        help="rtn rounds to the nearest; gptq lets inputs make the errors of others good; awq "
        "(w4a16, w8a16) and smoothquant (w8a8) first move factors between inputs and weights; "
        "awq-gptq and smoothquant-gptq do both; all but rtn need PyTorch and --calibrate (rtn)",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="TEXT",
        help="a text file of the kind that the model will read, for all methods but rtn",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="TEXT",
        help="then compare both models over a text file: perplexity, KL divergence",
    )
    parser.add_argument("--threads", type=int, metavar="COUNT", help="threads (one for each core)")


def run(arguments: argparse.Namespace) -> int:
    """Quantise, and compare if that is asked for; a finished result is only compared."""
    text = None if arguments.report is None else _read_text(arguments.report)
    learned = "" if arguments.calibrate is None else _read_text(arguments.calibrate)
    if (arguments.calibrate is not None) != (arguments.method != "rtn"):
        raise UsageError(
            "--calibrate TEXT and a --method other than rtn belong together: it reads that text"
        )
    threads = _threads(arguments.threads)
    from octavo.quantize.gguf.plan import check_block_type

    block_type = check_block_type(arguments.to)
    if block_type is not None:
        return _write_gguf(arguments, block_type, threads, text)
    from octavo.loader.source import resolve
    from octavo.quantize.calibration import Calibration
    from octavo.quantize.directory import is_finished
    from octavo.quantize.methods import method_for
    from octavo.quantize.plan import make_plan
    from octavo.quantize.run import quantize
    from octavo.quantize.types import check_group_size, target_of

    target = target_of(arguments.to)
    method_for(arguments.method, target)
    check_group_size(arguments.group_size)
    name = model_of(arguments)
    source = resolve(name)
    output = arguments.output or Path(default_directory(name, target.name))
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file; name a directory for the result")
    plan = make_plan(source, target, arguments.group_size, method=arguments.method, text=learned)
    if text is not None and is_finished(output, plan):
        sys.stderr.write(f"{output} is there already, and is only compared\n")
    else:
        calibrate = partial(Calibration, plan, _Progress("read").show) if learned else None
        with _shown_progress() as progress:
            kept = quantize(plan, output, threads, progress, calibrate, _Progress("moved"))
        if kept:
            sys.stderr.write(f"files that were there already: {size(kept)}\n")
        stored = sum(path.stat().st_size for path in source.weights)
        sys.stdout.write(
            f"{output}: {size(plan.num_bytes)} of weights, of {size(stored)}; {len(plan.matrices)} "
            f"matrices are {target.name}\n"
        )
    if text is not None:
        _report(name, output, text)
    return 0


def _write_gguf(
    arguments: argparse.Namespace, block_type: str, threads: int, text: str | None
) -> int:
    """Quantise a GGUF file to a type of GGUF, and compare if that is asked for."""
    from octavo.loader.source import resolve
    from octavo.quantize.gguf.plan import plan_gguf
    from octavo.quantize.gguf.run import is_finished, write_gguf

    if arguments.method != "rtn" or arguments.group_size is not None:
        raise UsageError(
            f"--method and --group-size are not for types of GGUF: {block_type} has groups of its "
            "own, and is rounded to the nearest; leave them out"
        )
    name = model_of(arguments)
    source = resolve(name)
    output = arguments.output or Path(f"{default_directory(name, block_type)}.gguf")
    if output.suffix != ".gguf" or output.is_dir():
        raise UsageError(f"{output} must be the name of a file that ends in .gguf")
    if not output.parent.is_dir():
        raise UsageError(f"{output.parent} is no directory; make it first")
    plan = plan_gguf(source, block_type)
    if text is not None and is_finished(output, plan):
        sys.stderr.write(f"{output} is there already, and is only compared\n")
    else:
        with _shown_progress() as progress:
            kept = write_gguf(plan, output, threads, progress)
        if kept:
            sys.stderr.write(f"{size(kept)} were there already\n")
        stored = sum(path.stat().st_size for path in source.weights)
        sys.stdout.write(
            f"{output}: {size(plan.num_bytes)}, of {size(stored)}; {plan.num_made} tensors are "
            f"quantised to {block_type}, or to a larger type\n"
        )
    if text is not None:
        _report(name, output, text)
    return 0


@contextmanager
def _shown_progress() -> Iterator[_Progress]:
    """Show how far quantising is, and how it continues when it is interrupted."""
    progress = _Progress("quantised")
    try:
        yield progress
    except KeyboardInterrupt:
        sys.stderr.write("\nThe same command continues.\n")
        raise
    finally:
        progress.close()


def default_directory(name: str, type_name: str) -> str:
    """Return the name of the directory for a model's result: letters, digits, dots and dashes."""
    stem = re.split(r"[@:]", name.rstrip("/"))[0].rpartition("/")[2]
    if name.startswith("pypi:"):
        stem = name.removeprefix("pypi:")
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip(".-")
    return f"{safe or 'model'}-{type_name}"


class _Progress:
    """The progress of a conversion in bytes, or of a comparison in tokens."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._line = ProgressLine()

    def show(self, done: int, total: int) -> None:
        if self._line.is_due(is_end=done == total):
            self._line.write(f"{100 * done // max(total, 1)} % {self._verb}")

    def close(self) -> None:
        self._line.close()


def _report(name: str, output: Path, text: str) -> None:
    """Compare the models and print the figures."""
    from octavo.loader.source import resolve
    from octavo.quantize.loaded import MOST_TOKENS
    from octavo.quantize.report import compare

    progress = _Progress("compared")
    try:
        found = compare(resolve(name), resolve(str(output)), text, progress.show)
    finally:
        progress.close()
    if not found.is_whole:
        sys.stderr.write(f"the text is longer; its first {MOST_TOKENS:,} tokens were read\n")
    change = found.other_perplexity / found.perplexity - 1
    rows = [
        ("tokens", f"{found.tokens:,}"),
        (f"perplexity of {name}", f"{found.perplexity:.4f}"),
        (f"perplexity of {output}", f"{found.other_perplexity:.4f} ({change:+.2%})"),
        ("mean KL divergence", f"{found.divergence:.6f} nats a token, over the whole vocabulary"),
        ("same likeliest token", f"{found.agreement:.2%}"),
    ]
    sys.stdout.write(table(rows))


def _read_text(path: Path) -> str:
    """Read the text of the report before any work is done."""
    with path.open("rb") as file:
        content = file.read(_MOST_TEXT_BYTES + 1)
    if len(content) > _MOST_TEXT_BYTES:
        raise UsageError(f"{path} has more than {size(_MOST_TEXT_BYTES)}; name a shorter text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text in UTF-8; --report reads plain text") from None


def _threads(asked: int | None) -> int:
    if asked is None:
        from octavo.observe.machine import num_cores

        return num_cores()[0]
    if not 1 <= asked <= 1024:
        raise UsageError(f"--threads {asked} must be from 1 to 1024")
    return asked
