"""The catalogue of failures: each is a line that makes it, and says what its message names."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from octavo.cli.commands import FAILED, MODEL, USAGE
from octavo.observe import machine
from octavo.observe.machine import Memory
from tests.failures.making import Failure, Place
from tests.failures.models import MODELS

_KEY = "a-long-enough-key"


def words(*given: str) -> Callable[[Place], list[str]]:
    """Return a failure that needs nothing but words."""
    return lambda place: list(given)


def serve(*given: str) -> Callable[[Place], list[str]]:
    """Return the start of a server with a sound model, at any free port."""
    return lambda place: ["serve", place.model(), "--port", "0", *given]


def with_file(name: str, content: str | bytes, *given: str) -> Callable[[Place], list[str]]:
    """Return the start of a server, in whose words FILE is a file with this content."""

    def make(place: Place) -> list[str]:
        path = place.file(name, content)
        return ["serve", place.model(), "--port", "0", *(w.replace("FILE", path) for w in given)]

    return make


def with_variable(name: str, value: str, *given: str) -> Callable[[Place], list[str]]:
    def make(place: Place) -> list[str]:
        place.patch.setenv(name, value)
        return [*given, place.model()]

    return make


def _port_in_use(place: Place) -> list[str]:
    other = place.open_until_the_end.enter_context(socket.create_server(("127.0.0.1", 0)))
    return ["serve", place.model(), "--port", str(other.getsockname()[1])]


def _output_is_full(place: Place) -> list[str]:
    line = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n'
    return ["batch", place.file("in.jsonl", line), "/dev/full", "--model", place.model()]


def _no_input(place: Place) -> list[str]:
    return ["batch", "none.jsonl", "out.jsonl", "--model", place.model()]


def _results_are_full(place: Place) -> list[str]:
    full = place.open_until_the_end.enter_context(open("/dev/full", "w"))  # noqa: SIM115
    place.output = full
    return ["completion", "bash"]


def _little_memory(place: Place) -> list[str]:
    place.patch.setattr(machine, "memory", lambda: Memory(1 << 30, 10_000, ""))
    return ["run", place.model(), "hello"]


_line = partial(Failure, "The command line")
_file = partial(Failure, "Variables and files of options")
_net = partial(Failure, "The server's addresses and keys")
_own = partial(Failure, "Files that the server uses")
_machine = partial(Failure, "The machine")

FAILURES: tuple[Failure, ...] = (
    _line("an unknown command", words("sevre"), USAGE, "sevre"),
    _line("an unknown option", serve("--max-modl-len", "5"), USAGE, "--max-modl-len"),
    _line("an option without its value", serve("--dtype"), USAGE, "--dtype"),
    _line("no number", serve("--max-num-seqs", "many"), USAGE, "--max-num-seqs"),
    _line("a number out of bounds", words("serve", "--port", "70000"), USAGE, "--port=70000"),
    _line("an unknown choice", serve("--engine", "threads"), USAGE, "--engine", varies=True),
    _line("a type that there is not", serve("--dtype", "int3"), USAGE, "--dtype='int3'"),
    _line("a size that is none", serve("--kv-cache-memory", "4XB"), USAGE, "4XB"),
    _line("no JSON", serve("--hf-overrides", "{"), USAGE, "--hf-overrides"),
    _line("two models", serve("--model", "another"), USAGE, "another"),
    _line("a second model that is none", serve("word"), FAILED, "word"),
    _line(
        "an option of vLLM that is not possible",
        serve("--dcp-q-replicate"),
        USAGE,
        "--dcp-q-replicate",
    ),
    _line("adapters beside stages", serve("-pp", "2", "--enable-lora"), USAGE, "-pp=2"),
    _line("nodes without stages", serve("--nnodes", "2"), USAGE, "--nnodes=2"),
    _line(
        "a successor beside nodes",
        serve("-pp", "2", "--nnodes", "2", "--handover", "/handover"),
        USAGE,
        "--handover",
    ),
    _line(
        "nodes on other machines without a secret",
        serve("-pp", "2", "--nnodes", "2", "--master-addr", "10.0.0.1"),
        USAGE,
        "openssl rand",
    ),
    _line(
        "a Ray cluster for one stage",
        serve("-tp", "2", "--distributed-executor-backend", "ray"),
        USAGE,
        "--distributed-executor-backend",
    ),
    _line("stages with packed files", serve("-pp", "2", "--packed-cache"), USAGE, "--packed-cache"),
    _line("a type of llama-server's KV cache", serve("-ctk", "q5_1"), USAGE, "q5_1"),
    _line("an unknown device", serve("--device", "tpu"), USAGE, "tpu", varies=True),
    _line(
        "an unknown way to draft",
        serve("--spec-method", "magic"),
        USAGE,
        "--spec-method",
        varies=True,
    ),
    _line(
        "an unknown key of an object",
        serve("--speculative-config", '{"metod": "ngram"}'),
        USAGE,
        "metod",
    ),
    _line("settings that exclude each other", serve("--packed-cache-bytes", "1G"), USAGE, "packed"),
    _line("no prompt", lambda place: ["run", place.model()], USAGE, "prompt"),
    _line("a prompt where the model belongs", words("run", "Why is it so?"), USAGE, "Why is it"),
    _file(
        "an unknown variable",
        with_variable("OCTAVO_MAX_MODL_LEN", "5", "serve"),
        USAGE,
        "OCTAVO_MAX_MODL_LEN",
    ),
    _file(
        "a variable without a value that would protect",
        with_variable("OCTAVO_SSL_CERTFILE", "", "serve"),
        USAGE,
        "OCTAVO_SSL_CERTFILE",
    ),
    _file("no file of options", serve("--config", "none.yaml"), USAGE, "none.yaml"),
    _file(
        "an unknown key in it",
        with_file("a.yaml", "max-modl-len: 5", "--config", "FILE"),
        USAGE,
        "max-modl-len",
    ),
    _file(
        "YAML that is not read",
        with_file("a.yaml", "port: &x 1", "--config", "FILE"),
        USAGE,
        "line 1",
    ),
    _net("a port in use", _port_in_use, FAILED, "port", varies=True),
    _net(
        "an address of another machine",
        serve("--host", "192.0.2.1", "--insecure-no-auth"),
        FAILED,
        "192.0.2.1",
    ),
    _net("open to others without a key", serve("--host", "0.0.0.0"), USAGE, "0.0.0.0"),
    _net(
        "a key that can be guessed",
        serve("--host", "0.0.0.0", "--api-key", "abc"),
        USAGE,
        "API key",
    ),
    _net("no file of keys", serve("--api-key-file", "keys"), FAILED, "keys"),
    _net("a file without keys", with_file("keys", "", "--api-key-file", "FILE"), USAGE, "keys"),
    _net("no certificate", serve("--ssl-certfile", "cert.pem"), FAILED, "cert.pem"),
    _net(
        "a certificate that is none",
        with_file("cert.pem", "x", "--ssl-certfile", "FILE"),
        USAGE,
        "cert.pem",
    ),
    _net("a key without its certificate", serve("--ssl-keyfile", "k"), USAGE, "--ssl-keyfile"),
    _net(
        "adapters from clients without keys", serve("--allow-runtime-lora-updating"), USAGE, "lora"
    ),
    _own("no directory for the socket", serve("--admin-socket", "no/socket"), FAILED, "no/socket"),
    _own("no directory for the journal", serve("--journal", "no/journal"), FAILED, "no/journal"),
    _own("a journal that is no file", serve("--journal", "/dev/full"), FAILED, "/dev/full"),
    _own("no template", serve("--chat-template", "none.jinja"), USAGE, "none.jinja"),
    _own(
        "a template with a mistake", serve("--chat-template", "{% if %}"), USAGE, "--chat-template"
    ),
    _own(
        "an unknown parser of calls",
        serve("--tool-call-parser", "hermse"),
        USAGE,
        "hermse",
        varies=True,
    ),
    _own("no such middleware", serve("--middleware", "no.such:thing"), USAGE, "no.such:thing"),
    _own("no file of requests", _no_input, USAGE, "none.jsonl"),
    _own("results in place of a device", _output_is_full, USAGE, "/dev/full"),
    _machine("a full disk", _results_are_full, FAILED, "space"),
    _machine("far too many threads", serve("--num-threads", "9999"), USAGE, "9999", varies=True),
    _machine("an old processor", serve("--cpu-isa", "avx9"), USAGE, "avx9", varies=True),
    _machine(
        "an order of sums that no kernel has",
        serve("--accumulation-order", "odd"),
        USAGE,
        "odd",
        varies=True,
    ),
    _machine(
        "a cache that cannot be written",
        serve("--packed-cache=/proc/no"),
        USAGE,
        "/proc/no",
        varies=True,
    ),
    _machine("too little memory", _little_memory, USAGE, "memory", varies=True),
    *(Failure("Models", *each) for each in MODELS),
)

assert {each.code for each in FAILURES} == {FAILED, MODEL, USAGE}
