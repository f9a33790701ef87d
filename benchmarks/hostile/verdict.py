"""Judges the responses to an attack: whether they are right, and reveal nothing."""

from __future__ import annotations

import json

from benchmarks.hostile.answers import Answer
from benchmarks.hostile.attack import ATTACK_KEY, INJECTED, WATCH_KEY, Attack, Right
from benchmarks.hostile.client import Outcome

MAX_ERROR_BYTES = 64 << 10
FORBIDDEN = (b"Traceback", b'File "', ATTACK_KEY.encode(), WATCH_KEY.encode())


def fault_of(attack: Attack, outcome: Outcome) -> str | None:
    """Return what is wrong with the responses to an attack, if anything is."""
    if outcome.was_refused:
        return "the server does not accept connections"
    if outcome.malformed:
        return f"malformed response: {outcome.malformed}"
    for answer in outcome.answers:
        fault = _fault_of_answer(attack.right, answer, has_body=attack.has_body)
        if fault:
            return fault
    if attack.right is Right.LEFT:
        return None
    if outcome.is_late:
        return f"{len(outcome.answers)} of {attack.num_answers} responses came in time"
    if len(outcome.answers) > attack.num_answers:
        return f"{len(outcome.answers)} responses to {attack.num_answers} requests"
    if not outcome.answers and attack.right is not Right.REFUSED_OR_CLOSED:
        return "the connection was closed without a response"
    return _fault_of_first(attack, outcome)


def _fault_of_first(attack: Attack, outcome: Outcome) -> str | None:
    """Judge the response to the attack itself; what follows it is a request for health."""
    if not outcome.answers:
        return None
    first, *others = outcome.answers
    if attack.right is not Right.SERVED and not 400 <= first.status < 500:
        return f"status {first.status} for a wrong request: {bytes(first.body[:200])!r}"
    if attack.is_followed and others and others[-1].status != 200:
        # A server that cannot find a request's end must not go on with the connection.
        return f"the request behind it has status {others[-1].status}"
    return None


def _fault_of_answer(right: Right, answer: Answer, *, has_body: bool) -> str | None:
    """Judge what holds for every response."""
    if answer.header(INJECTED) is not None:
        return f"a header was injected: {answer.headers}"
    is_valid = right in (Right.SERVED, Right.LEFT)
    if answer.status == 503 and is_valid and answer.header("retry-after"):
        return None
    if answer.status >= 500:
        return f"status {answer.status}: {bytes(answer.body[:200])!r}"
    if answer.status < 400:
        return None
    # A client that leaves may have a part only.
    return _fault_of_error(bytes(answer.body)) if has_body and answer.is_whole else None


def _fault_of_error(body: bytes) -> str | None:
    """Judge the body of an error."""
    if len(body) > MAX_ERROR_BYTES:
        return f"an error of {len(body)} bytes"
    for words in FORBIDDEN:
        if words in body:
            return f"an error with {words!r} in it: {body[:200]!r}"
    try:
        found = json.loads(body)
        error = found["error_message"] if "error_message" in found else found["error"]
    except (ValueError, TypeError, KeyError):
        return f"an error that is not in JSON: {body[:200]!r}"
    # Some APIs have the message itself there.
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str) or not message:
        return f"an error without a message: {body[:200]!r}"
    return None
