"""Lines of batch files: hostile ones are refused without being built, with what is wrong."""

from __future__ import annotations

import tracemalloc

import pytest

from octavo.serving.batches.lines import InvalidLineError, read_line

URLS = {"/v1/completions"}
MOST = 8 << 20
NAMES = ",".join(f'"{number:x}":1' for number in range(700_000))


def line(more: str, body: str = '{"prompt":"x"}', url: str = "/v1/completions") -> bytes:
    """Return a line with more fields behind its own."""
    return f'{{"custom_id":"a","url":"{url}","body":{body}{more}}}'.encode()


def wrong(data: bytes) -> list[tuple[str, str | None]]:
    """Return what is wrong with a line, as codes and fields."""
    with pytest.raises(InvalidLineError) as caught:
        read_line(data, URLS, MOST)
    return [(each.code, each.param) for each in caught.value.errors]


def test_the_names_of_a_line_are_not_built() -> None:
    """A line has 7 MB and 700,000 names, in its own fields, in its body or in a field of that."""
    own, inside = line("," + NAMES), line("", f'{{"prompt":"x",{NAMES}}}')
    streamed = line("", f'{{"prompt":"x","background":null,"stream":{{{NAMES}}}}}')
    tracemalloc.start()
    try:
        assert wrong(own) == [("invalid_request", str(number)) for number in range(8)]
        assert read_line(inside, URLS, MOST).custom_id == "a"
        assert wrong(streamed) == [("invalid_request", "body.stream")]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * len(own)


def test_what_is_wrong_with_a_long_line_is_named_as_with_a_short_one() -> None:
    long = '{"prompt":"' + "x" * 100_000 + '"}'
    for body in ('{"prompt":"x"}', long):
        assert wrong(line(',"other":1', body)) == [("invalid_request", "other")]
        assert wrong(line(',"method":"GET"', body, "/v1/other")) == [
            ("invalid_method", "method"),
            ("invalid_url", "url"),
        ]
        assert wrong(line(',"custom_id":7', body)) == [("invalid_request", "custom_id")]
        assert wrong(line(',"other":1', body, "/v1/other")) == [
            ("invalid_request", "other"),
            ("invalid_url", "url"),
        ]
        assert wrong(line("", body)[:-1]) == [("invalid_json_line", None)]
        assert wrong(b"[" + line("", body) + b"]") == [("invalid_request", None)]
        assert wrong(line("", body).replace(b'"custom_id":"a",', b"")) == [
            ("invalid_request", "custom_id")
        ]
    assert wrong(line("", long)[:-1] + b',"' + b"y" * 500_000 + b'":1}') == [
        ("invalid_request", "y" * 192)
    ]
