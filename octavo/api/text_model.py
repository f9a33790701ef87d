"""The text side of one model: the engine's facts, the tokenizer, the templates and the defaults.

It is made from the facts that an engine reports, so it works for an engine in any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.api.outputs import RequestError
from octavo.core.sampling_params import SamplingParams, ThinkingMarks
from octavo.grammar.checked import CheckedShapes
from octavo.loader import ModelFiles, resolve
from octavo.model_facts import GenerationDefaults
from octavo.options.engine import EngineArguments
from octavo.text.token_table import TokenTable
from octavo.text.tokenizer import Tokenizer
from octavo.wire.facts import EngineFacts

if TYPE_CHECKING:
    from octavo.formats.description import Formats, ToolFormat
    from octavo.formats.thinking import MarkTokens
    from octavo.loader import Checkpoint
    from octavo.text.chat.template import ChatTemplate

# The end of a prompt that shows whether its answers begin inside the reasoning.
MAX_END_TOKENS = 64


def files_of(facts: EngineFacts) -> ModelFiles:
    """Return an engine's model's files, from which the tokenizer is read."""
    return ModelFiles(facts.name, Path(facts.directory), tuple(map(Path, facts.weights)))


class TextModel:
    """The front end's knowledge of its model; the numbers are in `facts`, and only there."""

    def __init__(
        self,
        facts: EngineFacts,
        arguments: EngineArguments,
        processors: Sequence[str] = (),
        tokenizer: TokenTable | None = None,  # if it has been loaded already
        source: ModelFiles | None = None,  # where the tokenizer is, if that has been found already
    ) -> None:
        self.facts = facts
        if source is None:
            named = arguments.tokenizer
            source = files_of(facts) if named is None else resolve(named)
        self.source = source
        self.tokenizer: TokenTable = tokenizer or load_tokenizer(source)
        self.end_ids = tuple(
            dict.fromkeys((*facts.generation.eos_ids, *sorted(self.tokenizer.end_ids)))
        )
        self.defaults = recommended(facts.generation)
        self.max_logprobs = arguments.max_logprobs
        self.cache_settings = {  # by vLLM's names
            "block_size": facts.block_size,
            "cache_dtype": arguments.kv_cache_dtype,
            "enable_prefix_caching": arguments.enable_prefix_caching,
            "kv_cache_max_concurrency": round(facts.kv_tokens / facts.max_model_len, 2),
            "kv_cache_size_tokens": facts.kv_tokens,
            "num_gpu_blocks": facts.num_blocks,
            "num_gpu_blocks_override": arguments.num_gpu_blocks_override,
        }
        self.max_loras = arguments.max_loras if arguments.enable_lora else 0
        self.seed = arguments.seed
        self.processors = tuple(sorted(processors))  # names that requests may use
        self.takes_extra_args = bool(arguments.logits_processors)
        self.checked_shapes = CheckedShapes()
        self._given_marks: MarkTokens | None = None
        self.has_forced_end = False

    def end_of(self, prompt: Sequence[int]) -> str:
        """Return the end of a prompt's text, special tokens included."""
        last = list(prompt[-MAX_END_TOKENS:])
        return self.tokenizer.decode(last, skip_special_tokens=False)

    def set_formats(self, formats: Formats) -> None:
        """Take these formats for the model's own, instead of those that its template shows."""
        from octavo.formats.thinking import MarkTokens

        self._given_marks = MarkTokens(formats, self.tokenizer.added_tokens, self._token_of)

    def force_end(self, tokens: Sequence[int]) -> None:
        """Let reasoning whose budget is spent end with these tokens, a text and its mark."""
        self._marks.force_end(tuple(tokens))
        self.has_forced_end = True

    @property
    def can_limit_thinking(self) -> bool:
        """True if the reasoning can have a budget of tokens."""
        return self._marks.is_complete

    @property
    def _marks(self) -> MarkTokens:
        if self._given_marks is None:
            # Here, since few requests limit their reasoning.
            from octavo.formats.registry import detect
            from octavo.formats.thinking import MarkTokens

            templates, added = self.tokenizer.chat_templates, self.tokenizer.added_tokens
            template = templates.get("tool_use") or templates.get("default") or ""
            self._given_marks = MarkTokens(
                detect(template, tuple(added.values())), added, self._token_of
            )
        return self._given_marks

    def thinking_marks(self, prompt: Sequence[int]) -> ThinkingMarks | None:
        """Return the marks of reasoning in the answers to a prompt; None if they have none.

        Raise RequestError for a model whose reasoning cannot have a budget.
        """
        from octavo.formats.protocol import FormatError

        try:
            return self._marks.before(self.end_of(prompt))
        except FormatError as error:
            name = "thinking_token_budget"
            raise RequestError(
                f"{name} cannot be kept: {error}; leave it out, and limit the whole answer with "
                "max_tokens",
                param=name,
            ) from None

    def _token_of(self, text: str) -> int | None:
        """Return the token of the vocabulary that is exactly this text."""
        spelling, wanted = self.tokenizer.bytes_by_token.spelling, text.encode()
        for token in range(self.facts.vocabulary):
            name = self.tokenizer.id_to_token(token)
            if name is not None and spelling.bytes_of(name) == wanted:
                return token
        return None

    def template(self, source: str | None, *, with_tools: bool) -> ChatTemplate:
        """Return the given chat template, or the model's own."""
        # Imported here because only chats need the template engine.
        from octavo.text.chat.template import ChatTemplate, choose_template

        if source is None:
            if not self.tokenizer.chat_templates:
                raise RequestError(
                    "this model has no chat template; give one as chat_template",
                    param="chat_template",
                )
            source = choose_template(self.tokenizer.chat_templates, with_tools=with_tools)
        return ChatTemplate(source, self.tokenizer.special_tokens)

    def tool_format(self, template: ChatTemplate) -> ToolFormat | None:
        """Return the format of calls that a template and the model's added tokens show."""
        from octavo.formats.registry import choose

        return choose(template.source, tuple(self.tokenizer.added_tokens.values())).tools


def load_tokenizer(source: ModelFiles, opened: Checkpoint | None = None) -> Tokenizer:
    """Read the tokenizer from a model's files, which may be open already."""
    if source.is_gguf:  # imported here because the GGUF reader imports numpy
        from octavo.text.merging_tokenizer import quick_tokenizer_from_gguf

        return quick_tokenizer_from_gguf((opened or source.open()).metadata)
    from octavo.text.tokenizer_files import tokenizer_from_directory

    return tokenizer_from_directory(source.directory)


def named_tokenizer(
    arguments: EngineArguments, source: ModelFiles, opened: Checkpoint
) -> Tokenizer:
    """Read the tokenizer that the arguments name, or else that of the model, which is open."""
    if arguments.tokenizer is not None:
        return load_tokenizer(resolve(arguments.tokenizer))
    return load_tokenizer(source, opened)


def recommended(generation: GenerationDefaults) -> SamplingParams:
    """Return the sampling parameters of generation_config; ours where it sets none."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    given: dict[str, Any] = {
        name: value for name in names if (value := getattr(generation, name)) is not None
    }
    if generation.max_new_tokens is not None:
        given["max_tokens"] = generation.max_new_tokens
    return SamplingParams(**given)
