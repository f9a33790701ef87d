"""Models of the Hugging Face hub, from the cache on disk or fetched by a fake library."""

import importlib
import inspect
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.loader import hub
from octavo.loader.errors import DownloadError, SourceError, UnsupportedFormatError
from octavo.loader.source import resolve
from tests.loader.make_files import safetensors_bytes, write_index
from tests.loader.make_wheels import MODEL

COMMIT, OTHER = "a" * 40, "b" * 40
WEIGHTS = safetensors_bytes({"w": np.ones(2, np.float32)})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no library to fill it with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    return tmp_path / "hub"


def fill(cache: Path, files: dict[str, bytes], commit: str = COMMIT, ref: str = "main") -> Path:
    """Write the layout of the hub's own tools: blobs, links to them, and references."""
    repository = cache / "models--maker--model"
    snapshot = repository / "snapshots" / commit
    for name, data in files.items():
        blob = repository / "blobs" / f"{commit[:4]}-{name.replace('/', '-')}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    reference = repository / "refs" / ref
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit)
    return snapshot


MODEL_FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("maker/model", ("maker/model", "main", None)),
        ("maker/model@v1.0", ("maker/model", "v1.0", None)),
        ("maker/model@refs/pr/1", ("maker/model", "refs/pr/1", None)),
        ("maker/model:Q4_K_M", ("maker/model", "main", "Q4_K_M")),
        ("maker/model@v1:m.gguf", ("maker/model", "v1", "m.gguf")),
        ("model", None),
        ("a/b/c", None),
        ("../b", None),
        ("a/..b", None),
        ("/a/b", None),
        ("a/b@../c", None),
        ("a/b@", None),
        ("a/b\n", None),
    ],
)
def test_names(name: str, expected: tuple[str, str, str | None] | None) -> None:
    assert hub.parse(name) == (None if expected is None else hub.HubName(*expected))


def test_from_the_cache(cache: Path) -> None:
    snapshot = fill(cache, MODEL_FILES)
    source = resolve("maker/model")
    assert source.directory == snapshot
    assert source.weights == (snapshot / "model.safetensors",)
    assert source.open().read("w").tolist() == [1, 1]
    assert hub.cached_names() == ["maker/model"]


def test_revisions(cache: Path) -> None:
    first = fill(cache, MODEL_FILES)
    second = fill(cache, MODEL_FILES, OTHER, "refs/pr/1")
    assert resolve(f"maker/model@{COMMIT}").directory == first
    assert resolve("maker/model@refs/pr/1").directory == second
    assert resolve(f"maker/model@{OTHER}").directory == second
    with pytest.raises(
        DownloadError, match=r"maker/model \(revision v9\) is not in .*octavo\[hub\]"
    ):
        resolve("maker/model@v9")


def test_a_reference_cannot_lead_elsewhere(cache: Path) -> None:
    fill(cache, MODEL_FILES)
    (cache / "models--maker--model/refs/main").write_text("../../../secret")
    with pytest.raises(DownloadError):
        resolve("maker/model")


def test_shards_in_the_cache(cache: Path, tmp_path: Path) -> None:
    index = write_index(tmp_path / "i", {"w": "one.safetensors", "v": "two.safetensors"})
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": index.read_bytes(),
        "one.safetensors": WEIGHTS,
    }
    snapshot = fill(cache, files)
    with pytest.raises(DownloadError, match=r"only a part: .*two\.safetensors: this shard is miss"):
        resolve("maker/model")
    (snapshot / "two.safetensors").write_bytes(safetensors_bytes({"v": np.ones(1, np.int8)}))
    assert set(resolve("maker/model").open().tensors) == {"v", "w"}


def test_one_of_several_ggufs(cache: Path) -> None:
    snapshot = fill(cache, {"m-Q4_0.gguf": MODEL, "m-Q8_0.gguf": MODEL})
    assert resolve("maker/model:Q8_0").weights == (snapshot / "m-Q8_0.gguf",)
    with pytest.raises(DownloadError, match="2 files that could be the weights"):
        resolve("maker/model")


def test_a_local_directory_comes_first(cache: Path, tmp_path: Path) -> None:
    fill(cache, MODEL_FILES)
    (tmp_path / "maker/model").mkdir(parents=True)
    with pytest.raises(SourceError, match="maker/model: no weights"):
        resolve("maker/model")


def test_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match=r"is not in .*; unset HF_HUB_OFFLINE"):
        resolve("maker/model")


class FakeHub(ModuleType):
    """A fake of the part of huggingface_hub that the loader uses."""

    def __init__(self, cache: Path, files: dict[str, bytes]) -> None:
        super().__init__("huggingface_hub")
        self.cache, self.files = cache, files
        self.asked: list[dict[str, Any]] = []
        self.HfApi = lambda: SimpleNamespace(model_info=self.model_info)

    def model_info(self, repository: str, *, revision: str, timeout: float) -> SimpleNamespace:
        if repository != "maker/model":
            raise LookupError(f"404 for {repository}\nmore lines")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.files])

    def snapshot_download(
        self, repository: str, *, revision: str, allow_patterns: list[str], cache_dir: Path
    ) -> str:
        self.asked.append({"revision": revision, "files": allow_patterns})
        assert cache_dir == self.cache
        wanted = {name: self.files[name] for name in allow_patterns}
        return str(fill(self.cache, wanted, ref=revision))


class TestFetching:
    """Tests in which the library is installed and fetches."""

    @pytest.fixture
    def fake(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
        fake = FakeHub(cache, {**MODEL_FILES, "pytorch_model.bin": b"", "README.md": b""})
        monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
        return fake

    def test_only_what_is_needed_and_once(self, fake: FakeHub) -> None:
        source = resolve("maker/model")
        assert source.open().read("w").tolist() == [1, 1]
        assert resolve("maker/model").directory == source.directory
        assert fake.asked == [{"revision": "main", "files": sorted(MODEL_FILES)}]

    def test_revision_and_file(self, fake: FakeHub) -> None:
        fake.files = {"m-Q4_0.gguf": MODEL, "m-Q8_0.gguf": MODEL}
        assert resolve("maker/model@v2:Q4_0").weights[0].name == "m-Q4_0.gguf"
        assert fake.asked == [{"revision": "v2", "files": ["m-Q4_0.gguf"]}]

    def test_pickles_are_not_even_fetched(self, fake: FakeHub) -> None:
        fake.files = {"config.json": b"{}", "pytorch_model.bin": b""}
        with pytest.raises(UnsupportedFormatError, match=r"maker/model: 'pytorch_model\.bin' is a"):
            resolve("maker/model")
        assert fake.asked == []

    def test_the_librarys_errors_are_explained(self, fake: FakeHub) -> None:
        message = (
            r"other/model is not a directory here, and its revision main could not be fetched from"
            r" the hub: LookupError: '404 for other/model'; check the name"
        )
        with pytest.raises(DownloadError, match=message):
            resolve("other/model")

    def test_not_when_offline(self, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with pytest.raises(DownloadError, match="unset HF_HUB_OFFLINE"):
            resolve("maker/model")


def test_the_real_library_takes_these_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("huggingface_hub is not installed")
    real = importlib.import_module("huggingface_hub")
    inspect.signature(real.HfApi.model_info).bind(None, "a/b", revision="main", timeout=1.0)
    inspect.signature(real.snapshot_download).bind(
        "a/b", revision="main", allow_patterns=["*"], cache_dir=Path()
    )


def test_without_a_network_the_real_library_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The library does not retry, so it logs no warning for each attempt."""
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip("huggingface_hub is not installed")
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(
        constants, "ENDPOINT", "http://127.0.0.1:9"
    )  # a port on which nothing listens

    def sleep(seconds: float) -> None:
        pytest.fail("the library waits to try again")

    monkeypatch.setattr("time.sleep", sleep)
    with pytest.raises(DownloadError, match="could not be fetched from the hub: ConnectError"):
        resolve("maker/model")
    assert caplog.records == []


def test_a_model_without_config_is_incomplete(cache: Path) -> None:
    fill(cache, {"model.safetensors": WEIGHTS, "tokenizer.json": json.dumps({}).encode()})
    with pytest.raises(DownloadError, match=r"the weights are here but config\.json is not"):
        resolve("maker/model")
