"""The only reader of the environment: a typed function for each variable that Octavo uses."""

import os
from collections.abc import Mapping
from pathlib import Path

# The variables that a Python process may need to start; none holds a secret.
_HARMLESS = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONHOME", "TZ")
API_KEY = "OCTAVO_API_KEY"
# The variables of other servers that have the keys of theirs: vLLM's has one, llama.cpp's a list.
_ONE_FOREIGN_KEY, _FOREIGN_KEYS = "VLLM_API_KEY", "LLAMA_API_KEY"
_CACHE, _CALIBRATION, _CONFIG = "OCTAVO_CACHE", "OCTAVO_CPU_CALIBRATION", "OCTAVO_CONFIG"
_SECRETS = frozenset({API_KEY, _ONE_FOREIGN_KEY, _FOREIGN_KEYS})
# What systemd has for this process alone.
_OWN = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
_OWN |= {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}
LORA_UPDATING = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
CPU_ISA, CPU_THREADS = "OCTAVO_CPU_ISA", "OCTAVO_CPU_THREADS"
SETTING = "OCTAVO_"  # the beginning of a variable that has a setting of the server
# Those with functions of their own here.
_NO_SETTINGS = frozenset({API_KEY, _CACHE, CPU_ISA, CPU_THREADS, _CALIBRATION, _CONFIG})
# How long the threads of numpy's OpenBLAS wait for work before they sleep: 2 ** 4 cycles instead of
# 2 ** 26, for which they keep cores busy at every start and after every large product.
_IDLE_THREADS = "OPENBLAS_THREAD_TIMEOUT", "4"
_TRUE_WORDS = frozenset({"1", "true", "yes", "on"})


def _path(name: str) -> Path | None:
    """Return the variable as a path with `~` expanded; None if it is unset or empty."""
    text = os.environ.get(name, "")
    return Path(text).expanduser() if text else None


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in _TRUE_WORDS


def _user_cache() -> Path:
    return _path("XDG_CACHE_HOME") or Path("~/.cache").expanduser()


def cache_directory() -> Path:
    """Return the directory for downloads: OCTAVO_CACHE, else `octavo` in the user's cache."""
    return _path(_CACHE) or _user_cache() / "octavo"


def hub_cache_directory() -> Path:
    """Return the Hugging Face cache, by the rules of its own tools, so that both share one copy."""
    home = _path("HF_HOME") or _user_cache() / "huggingface"
    return _path("HF_HUB_CACHE") or _path("HUGGINGFACE_HUB_CACHE") or home / "hub"


def use_hub_cache(directory: Path) -> None:
    """Make a directory the Hugging Face cache of this process and of those that it starts."""
    os.environ["HF_HUB_CACHE"] = str(directory.absolute())


def hub_offline() -> bool:
    """Return whether HF_HUB_OFFLINE, or TRANSFORMERS_OFFLINE, forbids requests to the hub."""
    return _flag("HF_HUB_OFFLINE") or _flag("TRANSFORMERS_OFFLINE")


def cpu_instruction_set() -> str:
    """Return OCTAVO_CPU_ISA, the instruction set of the native kernels; empty for the best."""
    return os.environ.get(CPU_ISA, "").strip()


def measures_kernels() -> bool:
    """Return whether kernels are chosen by measurement: unless OCTAVO_CPU_CALIBRATION is off."""
    text = os.environ.get(_CALIBRATION, "").strip()
    if text not in ("", "on", "off"):
        raise ValueError(f"{_CALIBRATION}={text!r} must be on or off")
    return text != "off"


def interprets_kernels() -> bool:
    """Return whether TRITON_INTERPRET makes Triton interpret kernels instead of compiling them."""
    return _flag("TRITON_INTERPRET")


def measured_kernels_file() -> Path:
    """Return the file in which measurements of this machine's kernels are kept."""
    return cache_directory() / "kernels.jsonl"


def bytecode_directory() -> Path:
    """Return the directory in which the bytecode of this package is kept in one file."""
    return cache_directory() / "bytecode"


def packed_weights_directory() -> Path:
    """Return the directory of packed weights, where no other one is named."""
    return cache_directory() / "packed"


def cpu_threads() -> int:
    """Return OCTAVO_CPU_THREADS, the threads of the native engine; 0 if it is unset."""
    text = os.environ.get(CPU_THREADS, "").strip()
    if not text:
        return 0
    if not text.isdecimal():
        raise ValueError(f"{CPU_THREADS}={text!r} must be a whole number, 0 or more")
    return int(text)


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with `changes`, without keys and what is its own alone.

    Numpy's threads sleep there when they have nothing to do, unless the user has set something.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _SECRETS | _OWN}
    return {**dict([_IDLE_THREADS]), **kept, **changes}


def let_numpy_sleep() -> None:
    """Make numpy's threads sleep when they have nothing to do, unless the user has set something.

    An engine needs their cores. If numpy has been imported already, nothing changes.
    """
    os.environ.setdefault(*_IDLE_THREADS)


def stay_on_loopback() -> None:
    """Make the library of cards (NCCL) meet within this machine, unless the user says otherwise.

    By itself it would listen where other machines can reach it, and at a port of this machine at
    which everyone may ask about its ranks (RAS).
    """
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_RAS_ENABLE", "0")


def environment_without_secrets() -> dict[str, str]:
    """Return the environment of a child that processes hostile input: what Python needs, no keys.

    PYTHONPATH leads to this package also where it is run from its sources. The tokenizers' library
    starts no threads there, and numpy's none that would keep a core busy for 100 ms of its start.
    """
    kept = {name: os.environ[name] for name in _HARMLESS if name in os.environ}
    threads = {"TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"}
    return {**kept, "PYTHONPATH": child_module_path(), **threads}


def child_module_path() -> str:
    """Return the PYTHONPATH by which a child finds this package and the user's modules."""
    home = Path(__file__).parents[1]
    given = module_path()
    if home.name in ("site-packages", "dist-packages"):
        return given
    return os.pathsep.join([str(home), given] if given else [str(home)])


def ray_address() -> str:
    """Return the address of the Ray cluster to connect to; empty where Ray finds it by itself."""
    return os.environ.get("RAY_ADDRESS", "")


def ray_uses_haproxy() -> bool:
    """Return whether RAY_SERVE_ENABLE_HA_PROXY makes Ray Serve listen by HAProxy."""
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "") == "1"


def allows_lora_updating() -> bool:
    """Return VLLM_ALLOW_RUNTIME_LORA_UPDATING, vLLM's switch for clients that add adapters."""
    return _flag(LORA_UPDATING)


def adapters_directory() -> Path:
    """Return the directory in which servers keep private copies of adapters."""
    return cache_directory() / "adapters"


def runtime_directory() -> Path | None:
    """Return XDG_RUNTIME_DIR, the directory for the user's sockets; None if it is unset."""
    return _path("XDG_RUNTIME_DIR")


def module_path() -> str:
    """Return PYTHONPATH unchanged; empty if it is unset."""
    return os.environ.get("PYTHONPATH", "")


def api_keys() -> str:
    """Return OCTAVO_API_KEY, the keys that the server accepts, separated by commas."""
    return os.environ.get(API_KEY, "")


def foreign_api_keys() -> tuple[str, tuple[str, ...]]:
    """Return the keys that are set for another server, and the name of their variable.

    Who has set them believes that the server is closed.
    """
    if key := os.environ.get(_ONE_FOREIGN_KEY, ""):
        return _ONE_FOREIGN_KEY, (key,)
    if keys := os.environ.get(_FOREIGN_KEYS, ""):
        return _FOREIGN_KEYS, tuple(key.strip() for key in keys.split(","))
    return "", ()


def client_api_key() -> str:
    """Return OPENAI_API_KEY, with which a client asks a server; empty if it is unset."""
    return os.environ.get("OPENAI_API_KEY", "")


def shows_colours() -> bool:
    """Return whether a terminal may be sent styles: NO_COLOR is not set, and TERM not dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def set_variables() -> list[str]:
    """Return the names of all variables that are set and not empty, in their order."""
    return sorted(name for name, value in os.environ.items() if value)


def settings() -> dict[str, str]:
    """Return the variables that have settings of the server, OCTAVO_PORT for example."""
    names = sorted(name for name in os.environ if name.startswith(SETTING))
    return {name: os.environ[name] for name in names if name not in _NO_SETTINGS}


def options_file() -> str:
    """Return OCTAVO_CONFIG, the server's file of options; empty if there is none."""
    return os.environ.get(_CONFIG, "")


def otlp_protocol() -> str:
    """Return the protocol by which OpenTelemetry's variables let traces be sent; or nothing."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if value := os.environ.get(name, "").strip():
            return value
    return ""


def trace_endpoints() -> str:
    """Return the names of the variables in which other programs find a collector of traces."""
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return ", ".join(name for name in names if os.environ.get(name))


def traces_are_off() -> bool:
    """Return OTEL_SDK_DISABLED, by which OpenTelemetry is switched off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def whole_number(name: str, usual: int) -> int:
    """Return a variable that is a whole number, 1 or more; `usual` if it is unset."""
    text = os.environ.get(name, "").strip()
    if not text:
        return usual
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}={text!r} must be a whole number, 1 or more")
    return int(text)


def notify_socket() -> str:
    """Return NOTIFY_SOCKET, to which the state of this process is sent; or nothing."""
    return os.environ.get("NOTIFY_SOCKET", "")


def watchdog_seconds() -> float | None:
    """Return after how long a silence systemd ends this process; None: it watches no silence."""
    text, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or process not in ("", str(os.getpid())):
        return None
    return int(text) / 1e6 or None


def passed_descriptors() -> range:
    """Return the descriptors of the sockets that systemd has opened for this process."""
    count = os.environ.get("LISTEN_FDS", "")
    if not count.isdecimal() or os.environ.get("LISTEN_PID", "") != str(os.getpid()):
        return range(0)
    first = 3  # by systemd's convention
    return range(first, first + int(count))
