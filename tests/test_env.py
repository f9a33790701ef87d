"""The environment's variables, and what holds without them."""

import subprocess
import sys
from pathlib import Path

import pytest

from octavo import env

IDLE_THREADS = "OPENBLAS_THREAD_TIMEOUT"
NAMES = ("OCTAVO_CACHE", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/reader")
    for name in (*NAMES, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.cache_directory() == Path("/home/reader/.cache/octavo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert env.cache_directory() == Path("/cache/octavo")
    monkeypatch.setenv("OCTAVO_CACHE", "~/models")
    assert env.cache_directory() == Path("/home/reader/models")
    monkeypatch.setenv("OCTAVO_CACHE", "")
    assert env.cache_directory() == Path("/cache/octavo")


def test_hub_cache_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.hub_cache_directory() == Path("/home/reader/.cache/huggingface/hub")
    for name, value, expected in (
        ("XDG_CACHE_HOME", "/cache", "/cache/huggingface/hub"),
        ("HF_HOME", "/face", "/face/hub"),
        ("HUGGINGFACE_HUB_CACHE", "/old", "/old"),
        ("HF_HUB_CACHE", "/new", "/new"),
    ):
        monkeypatch.setenv(name, value)
        assert env.hub_cache_directory() == Path(expected)


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("", False)]
)
def test_hub_offline(monkeypatch: pytest.MonkeyPatch, value: str, *, expected: bool) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        assert env.hub_offline() is False
        monkeypatch.setenv(name, value)
        assert env.hub_offline() is expected
        monkeypatch.delenv(name)


def test_child_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/face")
    child = env.child_environment({"TMPDIR": "/scratch"})
    assert (child["HF_HOME"], child["TMPDIR"]) == ("/face", "/scratch")


def test_numpys_threads_sleep_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(IDLE_THREADS, raising=False)
    assert env.child_environment({})[IDLE_THREADS] == "4"
    monkeypatch.setenv(IDLE_THREADS, "20")
    env.let_numpy_sleep()
    assert env.child_environment({})[IDLE_THREADS] == "20"


@pytest.mark.parametrize(("value", "expected"), [("", True), ("on", True), (" off ", False)])
def test_measures_kernels(monkeypatch: pytest.MonkeyPatch, value: str, *, expected: bool) -> None:
    monkeypatch.setenv("OCTAVO_CPU_CALIBRATION", value)
    assert env.measures_kernels() is expected
    monkeypatch.setenv("OCTAVO_CPU_CALIBRATION", "sometimes")
    with pytest.raises(ValueError, match="must be on or off"):
        env.measures_kernels()


def test_a_child_without_secrets_has_one_thread_beside_numpy() -> None:
    program = "import numpy, os; print(len(os.listdir('/proc/self/task')))"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=env.environment_without_secrets(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "1"


@pytest.mark.parametrize(
    "use", ["import octavo; octavo.ConfigError", "from octavo.cli import main; main(['version'])"]
)
@pytest.mark.parametrize(("given", "expected"), [({}, "4"), ({IDLE_THREADS: "7"}, "7")])
def test_the_package_and_its_commands_let_numpys_threads_sleep(
    use: str, given: dict[str, str], expected: str
) -> None:
    program = f"import os; {use}; print(os.environ['{IDLE_THREADS}'])"
    environment = env.child_environment({})
    del environment[IDLE_THREADS]
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**environment, **given},
    )
    assert done.stdout.split()[-1] == expected
