"""Methods that are not read are refused by name, with the nearest that is."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from octavo.loader.errors import UnsupportedFormatError
from octavo.models.values import Values
from octavo.quant.refused import NEAREST
from octavo.quant.registry import METHODS, formats_for


@pytest.mark.parametrize("method", [*NEAREST, "HIGGS", "made_up"])
def test_a_method_is_refused_with_those_that_are_known(method: str) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        formats_for(Values({"quant_method": method}))
    assert f"'{method}'" in caught.value.problem
    assert caught.value.problem.endswith(", ".join(METHODS))
    general = "use the unquantised model or a GGUF file"
    assert caught.value.advice == NEAREST.get(method.lower(), general)


def test_no_method_is_both_read_and_refused() -> None:
    assert not METHODS.keys() & NEAREST.keys()


def test_all_methods_that_transformers_knows_have_an_answer() -> None:
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("utils") / "quantization_config.py"
    methods = source.read_text().split("class QuantizationMethod")[1].split("\n\n\n")[0]
    known = set(re.findall(r'= "(.+)"', methods))
    assert len(known) > 20
    assert known <= {*METHODS, *NEAREST}
