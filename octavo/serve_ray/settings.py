"""Reads the arguments of an application of Ray Serve: the options of `octavo serve`, and its own.

`serve run` gives texts, and a file of Ray Serve has values of YAML. Both become words of flags, so
that they have the names, the checks and the errors of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from octavo import env
from octavo.cli.commands import COMMANDS
from octavo.cli.execute import make_parser
from octavo.cli.flags.config_file import words_for
from octavo.cli.flags.variables import value_of
from octavo.cli.parsing import UsageError
from octavo.cli.serve import Settings, settings_of
from octavo.options.declare import add_flags, given_in
from octavo.options.processes.ray import RaySettings

if TYPE_CHECKING:
    from octavo.cli.parsing import Parser

# What Ray Serve does itself, and what is kept by one server, which another replica does not have.
_OF_RAY = (
    *("host", "port", "uds", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "grpc_port"),
    *("handover", "admin_socket", "root_path"),
)
_KEPT = ("journal", "responses_store", "batch_dir", "allow_runtime_lora_updating")
# With several replicas on a machine, none can find out by itself what is free for it.
_SIZES = ("kv_cache_memory_bytes", "num_gpu_blocks_override")


class RayApplicationSettings(NamedTuple):
    """The settings of an application, checked."""

    ray: RaySettings
    serve: Settings


def read(arguments: Mapping[str, Any]) -> RayApplicationSettings:
    """Return the settings that the arguments give; raise UsageError for what cannot be."""
    parser = make_parser(COMMANDS["serve"])
    add_flags(parser.add_argument_group("Ray Serve"), RaySettings)
    parsed = parser.parse_args([*_words(arguments, parser)])
    found = settings_of(parsed)
    if found.several is not None:
        raise UsageError("an application has one model; start one for each, with a route prefix")
    if parsed.engine != "process":
        raise UsageError(f"engine={parsed.engine}: replicas have engines in processes of their own")
    if found.engine.nnodes > 1:
        raise UsageError("a replica is on one machine: leave out what divides its engine (nnodes)")
    ray = RaySettings(**given_in(parsed, RaySettings))
    for name in (*_OF_RAY, *_KEPT):
        if getattr(parsed, name, None) not in (None, False):
            why = "Ray Serve listens" if name in _OF_RAY else "replicas keep nothing"
            raise UsageError(f"{name} has no meaning here: {why}; leave it out")
    server = found.server
    if env.ray_uses_haproxy() and not (server.api_keys or server.insecure_no_auth):
        raise UsageError(
            "RAY_SERVE_ENABLE_HA_PROXY=1: HAProxy listens for all machines and connects in the "
            "place of its clients, which all look like this machine; give api_key_file=FILE"
        )
    if ray.replicas_per_node > 1:
        return RayApplicationSettings(ray, _divided(found, ray))
    return RayApplicationSettings(ray, found)


def _divided(found: Settings, ray: RaySettings) -> Settings:
    """Return the settings of one replica among several of a machine."""
    if not any(getattr(found.engine, name) for name in _SIZES):
        raise UsageError(
            f"replicas_per_node={ray.replicas_per_node}: replicas of one machine do not divide its "
            "memory; give the KV cache of each: kv_cache_memory_bytes=2GiB"
        )
    options = {"num_threads": ray.replica_cpus, **found.options}
    return found._replace(options=options)


def _words(arguments: Mapping[str, Any], parser: Parser) -> Iterator[str]:
    actions = parser._option_string_actions
    for name, value in arguments.items():
        flag = "--" + str(name).replace("_", "-")
        if value is None:
            continue
        try:
            if isinstance(value, str):
                value = value_of(value, actions.get(flag))
            yield from words_for(flag, value, actions)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None
