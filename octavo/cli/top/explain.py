"""Says why a request to a running server was slow: where its time went, and what changes that.

ID is the id of the answer, or what the client sent as X-Request-Id. Without one, the last requests
are listed, the slowest first. The key that sent the request is read from OCTAVO_API_KEY.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from octavo import env
from octavo.cli.commands import OK
from octavo.cli.output import table
from octavo.cli.parsing import Parser
from octavo.cli.top.command import DEFAULT_URL

if TYPE_CHECKING:
    from octavo.route.address import Address

MAX_BYTES = 8 << 20
_BAR = 24  # characters of the whole time
_PHASES = {
    "template": "chat template",
    "tokenize": "tokenising",
    "admission": "admission queue",
    "queue": "engine's queue",
    "prefill": "prompt",
    "decode": "generating",
    "preempted": "recomputed after a preemption",
    "recomputed": "recomputed after a death",
    "restart": "without an engine",
    "lost": "lost with an engine",
    "preemptions": "preemptions",
}
# For what a request waited in an engine's queue; by octavo/core/stats.py.
_REASONS = {
    "slots": "a slot",
    "budget": "room in a step",
    "pace": "the pace of others",
    "blocks": "KV blocks",
    "adapters": "a slot for its adapter",
    "share": "its key's share",
    "prefix": "the same prefix of another",
    "grammar": "its grammar",
    "adapter": "its adapter",
    "fetch": "KV from elsewhere",
    "paused": "an operator",
    "turn": "the step before",
    "restart": "a new engine",
}
_MARKS = {"admission": ".", "queue": ".", "restart": ".", "lost": ".", "decode": ">"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="the request (default: list the last ones)"
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        default=DEFAULT_URL,
        help=f"the server (default: {DEFAULT_URL}), also as the base URL of its clients",
    )
    parser.add_argument("--json", action="store_true", help="print the server's own JSON")


def run(arguments: argparse.Namespace) -> int:
    """Ask the server, and print its explanation."""
    from octavo.route.address import read_address

    address = read_address(arguments.url)
    key = env.api_keys().partition(",")[0].strip()
    if arguments.id is None:
        text = _latest(address, key, as_json=arguments.json)
    else:
        found = _explanation(address, key, arguments.id)
        as_json = json.dumps(found, indent=1, ensure_ascii=False)
        text = f"{as_json}\n" if arguments.json else explained(found)
    sys.stdout.write(text)
    return OK


def _explanation(address: Address, key: str, name: str) -> dict[str, Any]:
    """Return what the server says of a request."""
    from urllib.parse import quote

    from octavo.cli.chat.endpoint import message_of
    from octavo.cli.top.ask import AskError, asked, refusal

    with asked(address, key, f"/v1/requests/{quote(name, safe='')}/explain") as response:
        data, status = response.read(MAX_BYTES), response.status
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    body = found if isinstance(found, dict) else {}
    error = body.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    if status == 200 and isinstance(body.get("timeline"), list):
        return body
    if status in (200, 404, 405) and code not in ("request_not_found", "explain_disabled"):
        raise AskError(
            f"{address.url} explains no requests: it is another server, or one of an older "
            "version; give the URL of an `octavo serve`"
        )
    if code == "request_not_found":
        raise AskError(f"{message_of(body)}; `octavo explain` lists the last ones")
    raise refusal(address, status, body, has_key=bool(key))


def _latest(address: Address, key: str, *, as_json: bool) -> str:
    """Return the requests that have ended lately, the slowest first."""
    from octavo.cli.top.ask import LostError
    from octavo.cli.top.stream import frames

    for frame, data in frames(address, key):
        if as_json:
            return json.dumps(json.loads(data)["ended"], indent=1, ensure_ascii=False) + "\n"
        if not frame.ended:
            return f"no request has ended yet at {address.url}\n"
        rows = [("REQUEST", "OUTCOME", "TIME", "FIRST BYTE", "PROMPT", "OUT")]
        for each in sorted(frame.ended, key=lambda each: -each.total_ms):
            first = "-" if each.first_byte_ms is None else _time(each.first_byte_ms)
            counts = (f"{each.prompt_tokens:,}", f"{each.generated_tokens:,}")
            rows.append(
                (_shown(each.id), _shown(each.outcome), _time(each.total_ms), first, *counts)
            )
        return (
            f"{table(rows, right=(2, 3, 4, 5))}`octavo explain REQUEST` says where its time went.\n"
        )
    raise LostError(f"the server at {address.url} ended its stream; is it shutting down?")


def explained(found: Mapping[str, Any]) -> str:
    """Return an explanation as text: the facts, the phases as bars, the sentence with the cause."""
    from octavo.cli.trouble import as_flags

    facts = [str(found.get("outcome", "")), f"{_time(found.get('total_ms'))} in all"]
    if found.get("time_to_first_byte_ms") is not None:
        facts.append(f"first byte after {_time(found['time_to_first_byte_ms'])}")
    cached = found.get("cached_tokens")
    of_cache = f" ({cached:,} cached)" if isinstance(cached, int) and cached else ""
    facts.append(f"{_count(found.get('prompt_tokens'))} prompt tokens{of_cache}")
    facts.append(f"{_count(found.get('completion_tokens'))} generated")
    drafted = found.get("drafted_tokens")
    if drafted:
        facts.append(f"{_count(found.get('accepted_draft_tokens'))} of {drafted:,} drafts accepted")
    head = f"{_shown(str(found.get('request_id', '')))}: {_shown(', '.join(facts))}\n"
    rows = list(_rows(found))
    if rows:
        rows.insert(0, ("PHASE", "AT", "TOOK", "", ""))
    cause = as_flags(str(found.get("cause", "")))
    if found.get("outcome") == "running":
        cause = "It is still running; its phases in the engine are known at its end."
    return f"{head}\n{table(rows, right=(1, 2))}\n{_shown(cause)}\n"


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the phases that took time."""
    total = max(_number(found.get("total_ms")), 1e-3)
    for part in found["timeline"]:
        took = _number(part.get("took_ms"))
        if took <= 0 and not part.get("count"):
            continue
        what = str(part.get("what", ""))
        begin = round(_BAR * min(1.0, _number(part.get("at_ms")) / total))
        length = max(1, round(_BAR * min(1.0, took / total)))
        bar = " " * min(begin, _BAR - 1) + _MARKS.get(what, "#") * length
        name = _PHASES.get(what, _shown(what))
        yield name, _time(part.get("at_ms")), _time(took), f"|{bar[:_BAR]:{_BAR}}|", _more(part)


def _more(part: Mapping[str, Any]) -> str:
    """Return what else is known of a phase."""
    if "from_token" in part:
        return f"tokens {_count(part['from_token'])}-{_count(part.get('to_token'))}"
    if "steps" in part:
        return f"{_count(part['steps'])} steps"
    if part.get("count"):
        return f"{_count(part['count'])}, {_count(part.get('lost'))} tokens lost"
    reasons = part.get("reasons_ms")
    if isinstance(reasons, dict):
        waits = (
            f"{_REASONS.get(name, _shown(name))} {_time(took)}" for name, took in reasons.items()
        )
        return f"for {', '.join(waits)}"
    return ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _time(milliseconds: Any) -> str:
    value = _number(milliseconds)
    return f"{value:.1f} ms" if value < 1000 else f"{value / 1000:.2f} s"


def _shown(text: str) -> str:
    from octavo.loader_process.messages import printable

    return printable(text)
