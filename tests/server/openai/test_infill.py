"""A text between two others: `suffix` of completions."""

from __future__ import annotations

from pathlib import Path

from octavo.text.pieces import FORMS
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.llama.infill_files import FIRST, make_infill_directory
from tests.server.make import serving


@in_loop
async def test_a_suffix_stands_between_the_models_own_marks(tmp_path: Path) -> None:
    for number, form in enumerate(FORMS[:2]):
        directory = make_infill_directory(tmp_path / str(number), form)
        async with serving(directory) as client:
            asked = {"max_tokens": 2, "return_token_ids": True}
            before = (await client.post("/tokenize", json={"prompt": "The "})).json()["tokens"]
            after = (await client.post("/tokenize", json={"prompt": " dog"})).json()["tokens"]
            answer = await client.complete(prompt="The ", suffix=" dog", echo=True, **asked)
            (choice,) = answer["choices"]
            marks = [FIRST, FIRST + 1, FIRST + 2]
            expected = [marks[0], *before, marks[1], *after, marks[2]]
            assert choice["prompt_token_ids"] == expected
            assert choice["text"].startswith("The ")
            ids = await client.complete(prompt=[5, 6], suffix=" dog")
            assert ids["error"]["param"] == "suffix"
            cut = await client.complete(suffix=" dog", truncate_prompt_tokens=9)
            assert cut["error"]["param"] == "suffix"


@in_loop
async def test_a_model_without_marks_refuses_a_suffix(tmp_path: Path) -> None:
    async with serving(make_directory(tmp_path)) as client:
        refused = (await client.complete(suffix="}"))["error"]
        assert (refused["param"], refused["code"]) == ("suffix", "unsupported_parameter")
        assert "choices" in await client.complete(suffix="", max_tokens=1)
        chat = (await client.chat(suffix="}"))["error"]
        assert chat["param"] == "suffix"
