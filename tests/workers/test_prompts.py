"""The part of a prompt worker that makes prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.text.chat import template as chat_template
from octavo.text.tokenizer_files import load_tokenizer_at
from octavo.workers.frames import pieces
from octavo.workers.jobs import BodyJob, Conversation, Job, PromptJob, PromptJobs
from octavo.workers.prompts import MAX_TEMPLATES, PromptMaker
from tests.api.tiny import make_tokenizer_files

MESSAGES = [{"role": "user", "content": "hi"}]


def test_a_template_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are kept, whether they are the model's own or were sent with the job."""
    compiled: list[str] = []

    class Counted(chat_template.ChatTemplate):
        def __init__(self, source: str, *args: Any, **options: Any) -> None:
            compiled.append(source)
            super().__init__(source, *args, **options)

    monkeypatch.setattr(chat_template, "ChatTemplate", Counted)
    maker = PromptMaker(load_tokenizer_at(make_tokenizer_files(tmp_path)))

    def make(template: str | None) -> str:
        talk = Conversation(messages=MESSAGES, template=template)
        return maker.make(PromptJob(conversation=talk)).text

    for _ in range(3):
        assert make(None) == "<s>user: hi\n<s>assistant: "
        assert make("[{{ messages[0].content }}]") == "[hi]"
    assert len(compiled) == 2
    for index in range(MAX_TEMPLATES):
        make(f"{{{{ messages[0].content }}}} {index}")
    make(None)
    assert len(compiled) == 2 + MAX_TEMPLATES + 1, "the cache has a bound"


@pytest.mark.parametrize("num_bytes", [0, 1, 300, 70_000, 1 << 20])
def test_a_job_is_sent_in_pieces_that_are_its_msgpack(num_bytes: int) -> None:
    """A large body is a piece of its own, so that it is not copied."""
    context = msgspec.Raw(msgspec.msgpack.encode({"a": 1}))
    body = bytes(index % 251 for index in range(num_bytes))
    job = BodyJob(kind="a:b", translate="c:d", context=context, body=body)
    sent = pieces(job)
    assert msgspec.msgpack.decode(b"".join(sent), type=Job) == job
    assert sent[-1] is body
    other = PromptJobs([PromptJob(text="x")])
    assert msgspec.msgpack.decode(b"".join(pieces(other)), type=Job) == other
