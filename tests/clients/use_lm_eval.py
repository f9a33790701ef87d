"""lm-eval: log-likelihoods through `echo` and `logprobs`, checked by hand; generation; a task."""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import lm_eval
from datasets import Dataset
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.models.openai_completions import LocalCompletionsAPI

URL, _, KEY, TOKENIZER = sys.argv[1:5]
PAIRS = [("The quick brown", " fox jumps"), ("A day in the", " country"), ("Ein Tag wie", " jeder")]

QUESTIONS = [
    {"question": "The quick brown", "choices": [" fox", " dog"], "answer": 0},
    {"question": "A day in the", "choices": [" town", " country"], "answer": 1},
]


def post(path: str, body: dict[str, Any]) -> Any:
    """Send a JSON request without any client library."""
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    asked = urllib.request.Request(f"{URL}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def by_hand(context: str, continuation: str) -> tuple[float, bool]:
    """Compute the log-likelihood from the server's prompt log-probabilities, token by token."""
    start = len(post("/tokenize", {"prompt": context})["tokens"])
    ids = post("/tokenize", {"prompt": context + continuation})["tokens"]
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    told = post("/v1/completions", body)["choices"][0]["prompt_logprobs"]
    ours = [told[index][str(token)] for index, token in enumerate(ids) if index >= start]
    return sum(each["logprob"] for each in ours), all(each["rank"] == 1 for each in ours)


class Task(ConfigurableTask):  # type: ignore[misc]  # mypy does not see the package
    """Two multiple-choice questions in memory."""

    def __init__(self) -> None:
        super().__init__(
            config={
                "task": "tiny_choices",
                "custom_dataset": lambda **_: {"test": Dataset.from_list(QUESTIONS)},
                "test_split": "test",
                "output_type": "multiple_choice",
                "doc_to_text": "{{question}}",
                "doc_to_choice": "{{choices}}",
                "doc_to_target": "{{answer}}",
                "target_delimiter": "",
                "metric_list": [{"metric": "acc"}],
            }
        )


def main() -> None:
    """Run all checks of this client."""
    model = LocalCompletionsAPI(
        base_url=f"{URL}/v1/completions",
        model="tiny",
        tokenizer_backend="huggingface",
        tokenizer=TOKENIZER,
        max_length=128,
        max_retries=1,
        num_concurrent=1,
        batch_size=2,
    )
    asked = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(PAIRS)]
    found = model.loglikelihood(asked)
    for pair, (likelihood, is_greedy) in zip(PAIRS, found, strict=True):
        expected, is_first = by_hand(*pair)
        assert abs(likelihood - expected) < 1e-4, (pair, likelihood, expected)
        assert is_greedy == is_first
    concurrent = LocalCompletionsAPI(
        base_url=f"{URL}/v1/completions",
        model="tiny",
        tokenizer_backend="huggingface",
        tokenizer=TOKENIZER,
        max_length=128,
        num_concurrent=3,
    )
    again = concurrent.loglikelihood(asked)
    assert [round(each[0], 4) for each in again] == [round(each[0], 4) for each in found]
    wanted = {"until": ["\n"], "max_gen_toks": 5}
    (text,) = model.generate_until([Instance("generate_until", {}, ("The quick", wanted), 0)])
    body = {"prompt": "The quick", "max_tokens": 5, "temperature": 0, "stop": ["\n"]}
    assert text == post("/v1/completions", body)["choices"][0]["text"]
    results = lm_eval.simple_evaluate(model=model, tasks=[Task()], bootstrap_iters=0)
    (scores,) = results["results"].values()
    assert scores["acc,none"] in (0.0, 0.5, 1.0)
    print("all is well")


main()
