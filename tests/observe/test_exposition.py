"""The text of metrics: OpenMetrics beside Prometheus's own format, and exemplars in it alone."""

from __future__ import annotations

import pytest

from octavo.observe.exposition import (
    MAX_EXEMPLAR_CHARACTERS,
    Counter,
    Exemplar,
    Gauge,
    Histogram,
    Labels,
    Metric,
    expose,
    wants_openmetrics,
)


def observed() -> Histogram:
    """Return a histogram with two exemplars in one bucket and one beyond all bounds."""
    histogram = Histogram("wait_seconds", "Waiting.", (0.5, 1.0))
    histogram.observe(0.25)
    histogram.observe(0.7, exemplar=Exemplar((("trace_id", "first"),), 1000))
    histogram.observe(0.75, exemplar=Exemplar((("trace_id", 'se"cond'),), 1001))
    histogram.observe(9.0, exemplar=Exemplar((("request_id", "third"),), 1002))
    return histogram


def named(*metrics: Metric, base: Labels = ()) -> list[tuple[str, Metric, Labels]]:
    return [(metric.name, metric, base) for metric in metrics]


def test_openmetrics_has_the_last_exemplar_of_each_bucket() -> None:
    text = expose(named(observed(), base=(("model_name", "m"),)), openmetrics=True).decode()
    assert text.splitlines() == [
        "# HELP wait_seconds Waiting.",
        "# TYPE wait_seconds histogram",
        'wait_seconds_bucket{model_name="m",le="0.5"} 1.0',
        'wait_seconds_bucket{model_name="m",le="1.0"} 3.0 # {trace_id="se\\"cond"} 0.75 1001.0',
        'wait_seconds_bucket{model_name="m",le="+Inf"} 4.0 # {request_id="third"} 9.0 1002.0',
        'wait_seconds_sum{model_name="m"} 10.7',
        'wait_seconds_count{model_name="m"} 4.0',
        "# EOF",
    ]


def test_the_plain_format_has_neither_exemplars_nor_an_end() -> None:
    text = expose(named(observed())).decode()
    assert "trace_id" not in text
    assert "EOF" not in text
    assert 'wait_seconds_bucket{le="1.0"} 3.0\n' in text


def test_a_family_of_openmetrics_is_named_without_the_suffix_of_its_samples() -> None:
    counter = Counter("requests", "Requests.")
    assert "# TYPE requests_total counter\n" in expose(named(counter)).decode()
    text = expose(named(counter), openmetrics=True).decode()
    assert "# TYPE requests counter\nrequests_total 0.0\n" in text


def test_an_exemplar_with_too_many_characters_is_left_out() -> None:
    histogram = Histogram("wait_seconds", "Waiting.", (1.0,))
    room = MAX_EXEMPLAR_CHARACTERS - len("trace_id")
    histogram.observe(0.5, exemplar=Exemplar((("trace_id", "x" * (room + 1)),), 1))
    assert " # " not in expose(named(histogram), openmetrics=True).decode()
    histogram.observe(0.5, exemplar=Exemplar((("trace_id", "x" * room),), 1))
    assert " # " in expose(named(histogram), openmetrics=True).decode()


def test_metrics_of_one_name_are_one_family_and_the_first_of_equal_labels_counts() -> None:
    one = Gauge("up", "Whether it runs.", lambda: 1.0)
    two = Gauge("up", "Whether it runs.", lambda: 2.0)
    again = Gauge("up", "Whether it runs.", lambda: 3.0)
    a: Labels = (("model_name", "a"),)
    b: Labels = (("model_name", "b"),)
    text = expose([("up", one, a), ("up", two, b), ("up", again, a)]).decode()
    assert text.splitlines()[1:] == [
        "# TYPE up gauge",
        'up{model_name="a"} 1.0',
        'up{model_name="b"} 2.0',
    ]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4", True),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text; q=0", False),
        ("application/openmetrics-text; q=high", False),
        ("APPLICATION/OpenMetrics-Text", True),
    ],
)
def test_the_accept_header_chooses_the_format(accept: str, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


def test_the_reference_parser_reads_openmetrics() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    histogram = Histogram("wait_seconds", "Waiting.", (0.5, 1.0))
    histogram.observe(0.25)
    histogram.observe(0.75, exemplar=Exemplar((("trace_id", "second"),), 1001))
    histogram.observe(9.0, exemplar=Exemplar((("request_id", "third"),), 1002))
    metrics = named(histogram, Counter("requests", "Requests."))
    text = expose(metrics, openmetrics=True).decode()
    families = {each.name: each for each in parser.text_string_to_metric_families(text)}
    buckets = [each for each in families["wait_seconds"].samples if each.name.endswith("_bucket")]
    found = [
        each.exemplar and (dict(each.exemplar.labels), each.exemplar.value) for each in buckets
    ]
    expected = [None, ({"trace_id": "second"}, 0.75), ({"request_id": "third"}, 9.0)]
    assert found == expected
    assert families["requests"].type == "counter"
