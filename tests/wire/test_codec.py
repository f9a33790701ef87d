"""Messages arrive unchanged; bytes that are not a message are an error and nothing worse."""

from __future__ import annotations

import math
import struct
from array import array
from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.config import MAX_WEIGHT
from octavo.core.plan import HiddenPayload, LogprobsPayload, TokenLogprobs
from octavo.core.request import EncoderInput, Request, TokenEvent
from octavo.core.sampling_params import (
    SAMPLERS,
    RequestOutputKind,
    SamplerOptions,
    SamplingParams,
)
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.core.stats import OUTSIDE, PrefillChunk, RequestStats, StepStats
from octavo.model_facts import GenerationDefaults
from octavo.options.engine import EngineArguments
from octavo.options.speculation import SpeculativeConfig
from octavo.wire import message_types as messages
from octavo.wire.channel import identity, read_identity
from octavo.wire.codec import (
    event_from_wire,
    event_to_wire,
    request_from_wire,
    request_to_wire,
)
from octavo.wire.commands import (
    BY_NAME,
    Command,
    CommandError,
    Pause,
    ResetPrefixCache,
    Resume,
    SetLogLevel,
)
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    AbortRequests,
    AddRequests,
    CommandReply,
    EngineCommand,
    EngineFailed,
    EngineReady,
    FromEngineFrame,
    Heartbeat,
    ProcessStarted,
    StartEngine,
    StepOutput,
    ToEngineFrame,
    WireError,
    WireEvent,
    decode_from_engine,
    decode_to_engine,
    encode,
    pack,
    unpack,
)

TOKEN = st.integers(0, 2**31 - 1)
NATURAL = st.integers(0, 2**63 - 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DIGEST = st.binary(max_size=64)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def ids(**bounds: Any) -> st.SearchStrategy[array]:
    return st.lists(TOKEN, **bounds).map(lambda tokens: array("i", tokens))


SAMPLING = st.builds(
    SamplingParams,
    max_tokens=st.integers(5, 2**31 - 1),
    min_tokens=st.integers(0, 5),
    stop_token_ids=st.lists(TOKEN, max_size=5).map(tuple),
    ignore_eos=st.booleans(),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 1000),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.01, 100),
    bad_words_token_ids=st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=3),
    logit_bias=st.dictionaries(TOKEN, st.floats(-100, 100), max_size=4),
    allowed_token_ids=st.none() | st.lists(TOKEN, min_size=1, max_size=5),
    logits_processors=st.lists(TEXT, max_size=2).map(tuple),
    extra_args=st.dictionaries(st.text(min_size=1, max_size=9), TEXT | FINITE, max_size=3),
    sampler_options=st.none()
    | st.builds(
        SamplerOptions,
        typical_p=st.floats(0.1, 1),
        dry_multiplier=st.floats(0, 9),
        dry_breaker_ids=st.lists(TOKEN, max_size=3).map(tuple),
        samplers=st.sampled_from([(), SAMPLERS, ("xtc", "top_k")]),
        mirostat=st.integers(0, 2),
        mirostat_eta=st.floats(0, 1),
    ),
    logprobs=st.none() | st.integers(-1, 20),
    prompt_logprobs=st.none() | st.integers(-1, 20),
    output_kind=st.sampled_from(RequestOutputKind),
)
REQUESTS = st.builds(
    Request,
    request_id=NATURAL.map(str),
    prompt=ids(min_size=1, max_size=30),
    sampling=SAMPLING,
    arrival=FINITE,
    emitted=ids(max_size=10),
    eos_token_ids=st.lists(TOKEN, max_size=3).map(tuple),
    priority=st.integers(-100, 100),
    lora=st.none() | TEXT,
    cache_scope=TEXT,
    resumed=st.booleans(),
    parent_id=st.none() | NATURAL.map(str),
    salts=st.lists(st.tuples(NATURAL, DIGEST), max_size=4).map(tuple),
    encoder=st.none() | st.builds(EncoderInput, st.integers(1, 2**31 - 1), DIGEST),
    holds=st.lists(st.sampled_from(OUTSIDE), max_size=3).map(tuple),
    owner=TEXT,
    weight=st.floats(0.001, MAX_WEIGHT),
    is_background=st.booleans(),
    prediction=ids(max_size=10),
    sampler_state=st.none() | FINITE,
    reports_prompt=st.booleans(),
)


@st.composite
def token_logprobs(draw: Any) -> TokenLogprobs:
    tokens = draw(ids(min_size=1, max_size=5))
    values = draw(st.lists(st.floats(width=32), min_size=len(tokens), max_size=len(tokens)))
    return TokenLogprobs(tokens, array("f", values), draw(NATURAL))


PAYLOADS = st.one_of(
    st.builds(
        LogprobsPayload,
        st.lists(token_logprobs(), max_size=3).map(tuple),
        NATURAL,
        st.lists(token_logprobs(), max_size=3).map(tuple),
    ),
    st.lists(st.floats(width=32), max_size=9).map(lambda v: HiddenPayload(array("f", v))),
)
STATS = st.builds(
    RequestStats,
    FINITE,
    NATURAL,
    FINITE,
    st.none() | FINITE,
    chunks=st.lists(st.builds(PrefillChunk, NATURAL, NATURAL, FINITE, FINITE), max_size=3),
    wait_seconds=st.dictionaries(st.sampled_from(["slots", "turn", "restart"]), FINITE),
)
EVENTS = st.builds(
    TokenEvent,
    NATURAL.map(str),
    NATURAL,
    st.lists(TOKEN, max_size=4).map(tuple),
    st.none() | st.sampled_from(["stop", "length", "abort", "error", "refused", "overloaded"]),
    st.none() | TOKEN,
    st.none() | TEXT,
    st.none() | PAYLOADS,
    st.none() | STATS,
)


def bits(value: Any) -> Any:
    """Convert a value into one that is equal for equal bits, even if it holds NaN."""
    if isinstance(value, array):
        return value.typecode, value.tobytes()
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, tuple | list):
        return tuple(map(bits, value))
    if isinstance(value, LogprobsPayload | HiddenPayload):
        return tuple(bits(getattr(value, item.name)) for item in fields(value))
    return value


@given(REQUESTS, NATURAL)
def test_a_request_arrives_as_it_was(request: Request, epoch: int) -> None:
    parent = None if request.parent_id is None else int(request.parent_id)
    wire = request_to_wire(request, int(request.request_id), parent)
    frame = decode_to_engine(encode(ToEngineFrame(epoch, 3, AddRequests((wire,)))))
    assert (frame.epoch, frame.number) == (epoch, 3)
    assert isinstance(frame.message, AddRequests)
    assert request_from_wire(frame.message.requests[0]) == request


def test_every_field_of_a_request_is_sent() -> None:
    """The names of a request and of its parent are sent as numbers."""
    sent = {item.name for item in msgspec.structs.fields(messages.WireRequest)}
    core = {item.name for item in fields(Request)}
    assert core - sent == {"request_id", "parent_id"}
    assert sent - core == {"number", "parent"}


@pytest.mark.parametrize(
    "beyond_bounds",
    [
        {"salts": ((0, b"d" * 65),)},
        {"salts": ((-1, b""),)},
        {"salts": ((0, b""),) * (messages.MAX_LISTED + 1)},
        {"encoder": EncoderInput(2**31, b"")},
        {"encoder": EncoderInput(0, b"")},
        {"encoder": EncoderInput(1, b"d" * 65)},
        {"holds": ("grammar",) * 9},
        {"holds": ("x" * 5000,)},
    ],
    ids=range(8),
)
def test_salts_encoder_input_and_holds_are_bounded(beyond_bounds: dict[str, Any]) -> None:
    """A request beyond the bounds is not sent, since the frame would end the engine."""
    request = replace(Request("1", array("i", [1]), SamplingParams(), 0.0), **beyond_bounds)
    with pytest.raises(WireError):
        request_to_wire(request, 1, None)


@given(EVENTS)
def test_an_event_arrives_as_it_was(event: TokenEvent) -> None:
    frame = decode_from_engine(encode(FromEngineFrame(1, 2, StepOutput((event_to_wire(event),)))))
    assert isinstance(frame.message, StepOutput)
    assert bits(event_from_wire(frame.message.events[0], event.request_id)) == bits(event)


STEP = StepStats(1, 2.5, 3, 4, 5, 6, 7, 8, 9, 10, "blocks")
FACTS = EngineFacts(
    "smollm2",
    "LlamaForCausalLM",
    "/models/é",
    ("/models/é/model.safetensors",),
    49152,
    8192,
    8000,
    16,
    1000,
    64,
    10_000,
    100_000_000,
    "float32",
    GenerationDefaults(1, (2, 3), 0.2, None, 5),
    {"weights": 1 << 40},
    (("load", 0.5),),
)
WHOLE_MESSAGES: list[ToEngineFrame | FromEngineFrame] = [
    ToEngineFrame(1, 0, StartEngine(pack(EngineArguments()), 20, b"k" * 32, {"seed": "--seed"})),
    ToEngineFrame(1, 1, AbortRequests((1, 2, 2**63 - 1))),
    ToEngineFrame(1, 2, EngineCommand(5, "set_log_level", pack(SetLogLevel(30)))),
    FromEngineFrame(9, 0, ProcessStarted()),
    FromEngineFrame(9, 1, EngineReady(FACTS)),
    FromEngineFrame(9, 2, EngineFailed("it is full")),
    FromEngineFrame(
        9,
        3,
        StepOutput(
            (),
            EngineLoad(3, 4, 1, 70),
            EngineSnapshot(
                1.5, 3, num_finished={"stop": 2}, recent=(STEP,), recent_seconds=(0.25,)
            ),
        ),
    ),
    FromEngineFrame(9, 4, Heartbeat(5, 0.25, 512)),
    FromEngineFrame(9, 5, CommandReply(7, pack(20))),
    FromEngineFrame(9, 6, CommandReply(8, error=CommandError("no_room", "for é"))),
]


@pytest.mark.parametrize("frame", WHOLE_MESSAGES, ids=lambda frame: type(frame.message).__name__)
def test_every_other_message_arrives_as_it_was(frame: ToEngineFrame | FromEngineFrame) -> None:
    decode = decode_to_engine if isinstance(frame, ToEngineFrame) else decode_from_engine
    assert decode(encode(frame)) == frame


@pytest.mark.parametrize("command", [Pause(), Resume(), ResetPrefixCache(), SetLogLevel(20)])
def test_a_packed_command_arrives_as_it_was(command: Command) -> None:
    assert unpack(pack(command), BY_NAME[command.name]) == command


@pytest.mark.parametrize(
    "arguments",
    [
        EngineArguments(model="x", seed=7),
        EngineArguments(speculative_config=SpeculativeConfig("ngram", 7)),
    ],
)
def test_packed_arguments_arrive_as_they_were(arguments: EngineArguments) -> None:
    assert unpack(pack(arguments), EngineArguments) == arguments


def test_what_is_not_packed_arguments_is_an_error_and_nothing_worse() -> None:
    packed = pack(EngineArguments(model="x"))
    for data in (packed[:-1], b"", pack(7), pack({"seed": "seven"}), pack({"max_num_seqs": 0})):
        with pytest.raises(WireError):
            unpack(data, EngineArguments)
    with pytest.raises(WireError):
        pack(object())


def test_every_sampling_parameter_is_sent_but_those_that_concern_only_text() -> None:
    sent = {item.name for item in msgspec.structs.fields(messages.WireSampling)}
    unsent = {item.name for item in fields(SamplingParams)} - sent
    assert unsent == {"stop", "bad_words", "structured_outputs", "prediction"}
    words = SamplingParams(stop=("\ud800",), bad_words=("\udfff",))  # never sent, so never wrong
    request = Request("1", array("i", [1]), words, 0.0)
    frame = decode_to_engine(
        encode(ToEngineFrame(1, 0, AddRequests((request_to_wire(request, 1, None),))))
    )
    assert isinstance(frame.message, AddRequests)
    plain = replace(words, stop=(), bad_words=())
    assert request_from_wire(frame.message.requests[0]).sampling == plain


def test_a_function_cannot_be_sent_and_the_error_says_what_to_do() -> None:
    sampling = SamplingParams(logits_processors=(lambda prompt, output, logits: logits,))
    with pytest.raises(WireError, match="engine='inline'"):
        request_to_wire(Request("1", array("i", [1]), sampling, 0.0), 1, None)


def test_a_message_that_cannot_be_encoded_is_an_error() -> None:
    request = Request("1", array("i", [1]), SamplingParams(), 0.0, cache_scope="\ud800")
    with pytest.raises(WireError, match="cannot be encoded"):
        encode(ToEngineFrame(1, 0, AddRequests((request_to_wire(request, 1, None),))))
    with pytest.raises(WireError, match="a payload of type str cannot be sent"):
        event_to_wire(TokenEvent("1", 0, (), payload="text"))


def test_frames_have_a_maximum_size_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 1000)
    with pytest.raises(WireError, match=r"the message has .* bytes; at most 1000"):
        encode(FromEngineFrame(1, 0, EngineFailed("x" * 2000)))
    with pytest.raises(WireError, match="the frame has 1001 bytes"):
        decode_from_engine(b"\x00" * 1001)


# bytes that are not a message


def _samples() -> list[bytes]:
    request = Request("7", array("i", [1, 2]), SamplingParams(logit_bias=((3, 1.0),)), 1.0)
    payload = LogprobsPayload((TokenLogprobs(array("i", [1]), array("f", [-1.0]), 1),), 0)
    event = TokenEvent("7", 0, (1,), "stop", 1, "why", payload, RequestStats(1.0, 2, 3.0))
    frames = [
        ToEngineFrame(1, 0, AddRequests((request_to_wire(request, 7, None),))),
        FromEngineFrame(1, 0, StepOutput((event_to_wire(event),))),
        *WHOLE_MESSAGES,
    ]
    return [encode(frame) for frame in frames]


SAMPLES = _samples()


def digest(data: bytes) -> None:
    """Decode bytes as both ends would; the only possible error is a WireError."""
    for decode in (decode_to_engine, decode_from_engine):
        try:
            message = decode(data).message
            if isinstance(message, AddRequests):
                for request in message.requests:
                    request_from_wire(request)
            if isinstance(message, StepOutput):
                for event in message.events:
                    event_from_wire(event, "7")
        except WireError:
            pass


@given(st.binary(max_size=200))
def test_noise_is_an_error_and_nothing_worse(data: bytes) -> None:
    digest(data)


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_frame_is_an_error_or_a_message_and_nothing_worse(data: st.DataObject) -> None:
    sample = bytearray(data.draw(st.sampled_from(SAMPLES)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(sample) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                sample[place] = data.draw(st.integers(0, 255))
            case 1:
                del sample[place:]
                sample.append(0)
            case _:
                sample[place:place] = data.draw(st.binary(min_size=1, max_size=9))
    digest(bytes(sample))


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_a_truncated_frame_is_an_error_wherever_it_is_cut(sample: bytes) -> None:
    for length in range(len(sample)):
        for decode in (decode_to_engine, decode_from_engine):
            with pytest.raises(WireError):
                decode(sample[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 100_000,  # arrays in arrays
        b"\x81\xa1a" * 100_000,  # maps in maps
        b"\xdd\xff\xff\xff\xff",  # an array of four billion items
        b"\xdb\xff\xff\xff\xff",  # a string as long
        b"\x93\x01\x00\x93\x03\xdd\xff\xff\xff\xff",
        b"\x93\xc0\x00\x91\x00",  # no epoch
        b"\x93\x01\xff\x91\x00",  # frame -1
        b"\x93\x01\x00\x91\x63",  # message 99
        b"\x93\x01\x00\x92\x00\x00",  # more fields than a ProcessStarted has
        b"\xc7\x04\x05abcd",  # an extension
        b"",
    ],
    ids=range(11),
)
def test_hostile_frames_are_errors(data: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        with pytest.raises(WireError):
            decode(data)


def test_token_ids_and_probabilities_are_checked() -> None:
    wire = request_to_wire(Request("1", array("i", [1]), SamplingParams(), 0.0), 1, None)
    bad = {
        "not a multiple": msgspec.structs.replace(wire, prompt=b"abc"),
        "token id -1 is negative": msgspec.structs.replace(wire, prompt=b"\xff" * 4),
        "top_p": msgspec.structs.replace(
            wire, sampling=msgspec.structs.replace(wire.sampling, top_p=math.nan)
        ),
    }
    for message, request in bad.items():
        with pytest.raises(WireError, match=message):
            request_from_wire(request)
    uneven = messages.WireLogprobsPayload(
        (messages.WireTokenLogprobs(b"\0" * 8, b"\0" * 4, 1),), 0, ()
    )
    with pytest.raises(WireError, match="2 tokens with 1 log-probabilities"):
        event_from_wire(WireEvent(1, 0, (), payload=uneven), "r")


def test_the_name_of_a_socket_identifies_its_engine() -> None:
    assert read_identity(identity(b"work", 12)) == (b"work", 12)
    for name in (b"", b"work", b"work-", b"work-x", b"other-1", b"work-" + b"9" * 30, b"\0\0"):
        with pytest.raises(WireError, match="unknown socket"):
            read_identity(name)
