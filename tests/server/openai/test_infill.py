"""A text between two others: `suffix` of completions."""

from __future__ import annotations

import json
from pathlib import Path

from octavo.text.infill import FORMS
from tests.server.durable.make import in_loop
from tests.server.engine import make_directory
from tests.server.make import serving


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@in_loop
async def test_a_suffix_stands_between_the_models_own_marks(tmp_path: Path) -> None:
    for number, form in enumerate(FORMS[:2]):
        directory = make_directory(_made(tmp_path / str(number)))
        path = directory / "tokenizer.json"
        described = json.loads(path.read_text("utf-8"))
        first = 290  # the vocabulary's last merges, which no text here needs
        names = {name: each for name, each in described["model"]["vocab"].items() if each < first}
        described["model"]["vocab"] = names
        merges = described["model"]["merges"]
        described["model"]["merges"] = merges[: first - 2 - 256]
        shape = described["added_tokens"][0]
        for place, mark in enumerate(form):
            described["added_tokens"].append({**shape, "id": first + place, "content": mark})
        path.write_text(json.dumps(described), "utf-8")
        async with serving(directory) as client:
            asked = {"max_tokens": 2, "return_token_ids": True}
            before = (await client.post("/tokenize", json={"prompt": "The "})).json()["tokens"]
            after = (await client.post("/tokenize", json={"prompt": " dog"})).json()["tokens"]
            answer = await client.complete(prompt="The ", suffix=" dog", echo=True, **asked)
            (choice,) = answer["choices"]
            marks = [first, first + 1, first + 2]
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
