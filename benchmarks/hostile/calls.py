"""Attacks on the gRPC interface of a server of its own, and the faults found.

What callers without a key, and one key with many calls, can make the server keep; and whether a
client with another key is served meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from benchmarks.hostile.attack import ATTACK_KEY, LIVE, WATCH_KEY, Attack
from benchmarks.hostile.client import carry_out
from benchmarks.hostile.http2 import DATA, Http2, frame
from benchmarks.hostile.http2 import message as framed
from benchmarks.served.client import Served, peak_mib
from benchmarks.served.leaks import holdings, holdings_in_the_end, leaks, settle

SERVICE = "/octavo.v1.Inference/"
HEALTH = "/grpc.health.v1.Health/"
WATCH = f"{HEALTH}Watch"
NUM_STREAMS = 128  # at once on a connection
MAX_GROWTH_MB = 200.0
OK, CANCELLED, INVALID, LATE, EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE = 0, 1, 3, 4, 8, 12, 14
UNAUTHENTICATED = 16
SECONDS = 60.0  # in which an answer comes that needs no other call's end

Clients = Callable[..., list[Http2]]


def attack_calls(served: Served, num_calls: int) -> list[str]:
    """Return the faults of a server that is attacked in each way with so many calls."""
    port = int(served.start["grpc_port"])
    faults = [] if is_served(port) else ["a client is not served before the attacks"]
    before = holdings(served)
    least_mib = peak_mib(served.process.pid)
    for attack in (invented_names, large_names, without_a_key, silent, paths, idle, largest):
        with clients_of(port) as connect:
            name = attack.__name__.replace("_", " ")
            faults += [f"{name}: {fault}" for fault in attack(connect, num_calls)]
            if not is_served(port):
                faults.append(f"{name}: a client with another key is not served")
            live = asyncio.run(carry_out(Attack((LIVE,)), served.port, "127.0.2.1"))
            if [answer.status for answer in live.answers] != [200]:
                faults.append(f"{name}: /health/live does not answer over HTTP")
    grown = (peak_mib(served.process.pid) - least_mib) * 1.048576
    if grown > MAX_GROWTH_MB:
        faults.append(f"the front end grew by {grown:.0f} MB, above {MAX_GROWTH_MB:.0f} MB")
    asyncio.run(settle(served))
    return faults + leaks(before, asyncio.run(holdings_in_the_end(served, before)))


@contextlib.contextmanager
def clients_of(port: int) -> Iterator[Clients]:
    """Yield what opens connections from some addresses, and close them with the block."""
    with contextlib.ExitStack() as stack:

        def connect(number: int, addresses: int = 16) -> list[Http2]:
            made = []
            for index in range(number):
                source = f"127.0.0.{2 + index % addresses}"
                with contextlib.suppress(OSError):
                    made.append(stack.enter_context(Http2(port, source)))
            return made

        yield connect


def is_served(port: int) -> bool:
    """Return whether a client with a key of its own gets its answer, and health another."""
    with Http2(port, "127.0.1.1") as client:
        states = [client.end_of(client.call(f"{HEALTH}Check"), SECONDS)]
        states.append(client.end_of(client.call(f"{SERVICE}GetServerInfo", key=WATCH_KEY), SECONDS))
        return states == [OK, OK]


def invented_names(connect: Clients, number: int) -> list[str]:
    """Watch services that do not exist."""
    for index, client in enumerate(connect(number // NUM_STREAMS + 1)):
        for each in range(min(number, NUM_STREAMS)):
            name = f"invented {index} {each}".encode()
            client.call(WATCH, bytes([0x0A, len(name)]) + name)
    return []


def large_names(connect: Clients, number: int) -> list[str]:
    """Begin watches of names of a megabyte, whose rest never comes."""
    for client in connect(number // NUM_STREAMS + 1):
        for _ in range(min(number, NUM_STREAMS)):
            stream = client.begin(WATCH)
            client.send(frame(DATA, 0, stream, framed(b"\x0a" + b"x" * 300, 1 << 20)))
    return []


def without_a_key(connect: Clients, number: int) -> list[str]:
    """Begin calls without a key, whose messages never come."""
    clients = connect(number // NUM_STREAMS + 1)
    begun = [
        (client, client.begin(f"{SERVICE}Generate", "wrong"))
        for client in clients
        for _ in range(min(number, NUM_STREAMS))
    ]
    ends = {client.end_of(stream, SECONDS) for client, stream in begun}
    # Beyond a thousand that wait for the event loop, grpcio refuses calls itself.
    expected = ends <= {UNAUTHENTICATED, CANCELLED, UNAVAILABLE} and UNAUTHENTICATED in ends
    return [] if expected else [f"calls end with {ends}"]


def silent(connect: Clients, number: int) -> list[str]:
    """Begin calls with a key, whose messages never come; they end in time."""
    clients = connect(number // NUM_STREAMS + 1)
    for client in clients:
        for _ in range(min(number, NUM_STREAMS)):
            client.begin(f"{SERVICE}Generate", ATTACK_KEY)
    first = clients[0].end_of(1, SECONDS)
    return [] if first in (LATE, EXHAUSTED) else [f"the first call ends with {first}"]


def paths(connect: Clients, number: int) -> list[str]:
    """Call what does not exist, by paths that are no text."""
    (client,) = connect(1)
    wrong = [b"/\xff\xfe/x", SERVICE.encode() + b"\xff", b"", b"/", b"\x80", b"/x" * 4000]
    ends = {client.end_of(client.call(path), SECONDS) for path in wrong}
    return [] if ends == {UNIMPLEMENTED} else [f"calls end with {ends}"]


def idle(connect: Clients, number: int) -> list[str]:
    """Open connections without a call, from one address."""
    connect(number // 8, addresses=1)
    return []


def largest(connect: Clients, number: int) -> list[str]:
    """Send whole messages of the largest size with one key, from many callers at once."""
    import grpc

    with contextlib.ExitStack() as stack:
        port = connect(1)[0].port
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options))
            for _ in range(8)
        ]
        metadata = (("authorization", f"Bearer {ATTACK_KEY}"),)
        text = bytes(1 << 20)
        asked = [
            channels[index % 8].unary_unary(f"{SERVICE}Generate").future(text, metadata=metadata)
            for index in range(number // 10)
        ]
        ends = {each.code().value[0] for each in asked}
    return [] if ends <= {INVALID, LATE, EXHAUSTED, UNAVAILABLE} else [f"calls end with {ends}"]
