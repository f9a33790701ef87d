"""sentence-transformers: small models of each kind, saved by it, with what it makes of texts.

`python make_sentence_models.py DIRECTORY TOKENIZER` runs in its own environment; the last line of
its output is a JSON object of the expected values by the model's name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

DIRECTORY, TOKENIZER = map(Path, sys.argv[1:3])
TEXTS = ["The quick brown fox", "A day in the country is worth a month.", "Ein Tag, größer."]
QUERY = "What does the fox do?"
PROMPT = "Instruct: find it\nQuery:"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}answer:"
    "{# for a query and a document #}"
)
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 200,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
DECODER = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}


def save(name: str, base: str, task: str, single: str, pair: str, **more: Any) -> Path:
    """Save a random model of transformers, with a tokenizer that frames texts so."""
    place = DIRECTORY / name
    fields = (DECODER if base in ("Qwen3", "Mistral", "Llama") else SIZES) | more
    torch.manual_seed(7)
    config = getattr(transformers, f"{base}Config")(**fields)
    model = getattr(transformers, f"{base}{task}")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(place)
    backend = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    ends = [("<s>", 0), ("</s>", 2)]
    backend.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=ends)
    names = ["input_ids", "token_type_ids", "attention_mask"]
    has_types = fields.get("type_vocab_size", 0) > 1
    tokenizer: Any = transformers.PreTrainedTokenizerFast
    tokenizer(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_input_names=names if has_types else names[::2],
    ).save_pretrained(place)
    return place


def embedder(name: str, base: str, single: str, pooling: str, **more: Any) -> list[Any]:
    """Return the vectors of texts, and those with the prompt of a query."""
    place = str(save(name, base, "Model", single, f"{single} $B:1", **more))
    encoder = modules.Transformer(place)
    parts: list[Any] = [encoder, modules.Pooling(SIZES["hidden_size"], pooling)]
    if base == "Bert":
        parts.append(modules.Dense(SIZES["hidden_size"], 24))
    parts.append(modules.Normalize())
    model = SentenceTransformer(modules=parts, prompts={"query": PROMPT}, device="cpu")
    model.save(place)
    found = SentenceTransformer(place, device="cpu")
    return [found.encode(TEXTS).tolist(), found.encode(TEXTS, prompt_name="query").tolist()]


def ranker(name: str, base: str, single: str, pair: str, **more: Any) -> list[float]:
    """Return the scores of a cross-encoder."""
    place = str(save(name, base, "ForSequenceClassification", single, pair, num_labels=1, **more))
    model = CrossEncoder(place, device="cpu")
    model.save_pretrained(place)
    found = CrossEncoder(place, device="cpu")
    return found.predict([(QUERY, text) for text in TEXTS]).tolist()


def answering() -> list[float]:
    """Return the scores of a reranker made of a generator."""
    place = save("answers", "Qwen3", "ForCausalLM", "$A", "$A $B", tie_word_embeddings=True)
    (place / "chat_template.jinja").write_text(TEMPLATE)
    encoder = modules.Transformer(str(place), transformer_task="text-generation")
    score = LogitScore(true_token_id=17, false_token_id=23)
    model = CrossEncoder(modules=[encoder, score], device="cpu", prompts={"web": "Find it."})
    model.default_prompt_name = "web"
    model.save_pretrained(str(place))
    found = CrossEncoder(str(place), device="cpu")
    return found.predict([(QUERY, text) for text in TEXTS]).tolist()


def main() -> None:
    """Make all of them."""
    framed, with_types = "<s> $A </s>", "<s> $A </s> $B:1 </s>:1"
    made: dict[str, Any] = {
        "qwen3": embedder("qwen3", "Qwen3", "$A </s>", "lasttoken"),
        "mistral": embedder("mistral", "Mistral", framed, "lasttoken", sliding_window=9),
        "bert": embedder("bert", "Bert", framed, "mean", type_vocab_size=2),
        "mpnet": embedder("mpnet", "MPNet", framed, "cls"),
    }
    ranked = {
        "rank-bert": ranker("rank-bert", "Bert", framed, with_types, type_vocab_size=2),
        "rank-roberta": ranker(
            "rank-roberta", "Roberta", framed, "<s> $A </s> </s> $B </s>", type_vocab_size=1
        ),
        "rank-llama": ranker("rank-llama", "Llama", "$A", "$A </s> $B"),
        "answers": answering(),
    }
    print(json.dumps({"texts": TEXTS, "query": QUERY, "embedded": made, "ranked": ranked}))


main()
