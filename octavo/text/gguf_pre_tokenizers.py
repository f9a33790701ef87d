"""The rules by which byte-level vocabularies of GGUF files split text before merging.

A GGUF file does not hold the rule, only its name, in `tokenizer.ggml.pre`. Each entry here rebuilds
what the model's own `tokenizer.json` describes, normaliser included, so that the tokens are those
that the model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

# The cased letters of DeepSeek's first tokenizers, as code points and ranges; the list follows an
# old version of Unicode.
CASED_LETTERS = """
    B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A
    38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA
    1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D
    1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC
    1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D
    2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B
    2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787 A78B-A78E
    AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB
    10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""
HAN_AND_HANGUL = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
HAN_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
PUNCTUATION = r"!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}"


def _letters(code_points: str) -> str:
    """Return the inside of a character class for hexadecimal code points and ranges."""
    escaped = (
        r"-".join(rf"\x{{{end}}}" for end in part.split("-")) for part in code_points.split()
    )
    return f"A-Za-z{''.join(escaped)}"


class PreTokenizer(Struct, frozen=True):
    """The settings that a name in `tokenizer.ggml.pre` implies."""

    build: Callable[[], pre_tokenizers.PreTokenizer]
    nfc: bool = False  # text is first normalised to composed characters
    ignore_merges: bool = False  # a whole piece that is a token is not split by the merges
    add_bos: bool = False  # unless the file says otherwise


def _isolate(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _splits(*patterns: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """Return a builder that splits by each pattern, then spells the pieces in bytes."""
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return lambda: pre_tokenizers.Sequence([*map(_isolate, patterns), spell])


def _gpt2_words() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2_words()])


def _falcon() -> pre_tokenizers.PreTokenizer:
    # Digits are split after the bytes are spelled, as in the model's own file.
    digits = pre_tokenizers.Digits(individual_digits=False)
    steps = [pre_tokenizers.Punctuation("contiguous"), _gpt2_words(), digits]
    return pre_tokenizers.Sequence([*steps, _isolate("[0-9][0-9][0-9]")])


def _words(digits: str, marks: str = "") -> str:
    """Return the pattern of GPT-4's first generation, with `digits` as its pattern of digits."""
    return (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|{digits}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{SPACES}"
    )


def _cased_words(digits: str, suffix: str) -> str:
    """Return the pattern of GPT-4o's generation, which also splits where the case changes."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{UPPER}*{LOWER}+{suffix}|{lead}{UPPER}+{LOWER}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
    )


GPT2 = PreTokenizer(_gpt2_words)
NEOX = PreTokenizer(_gpt2_words, nfc=True)
STARCODER = PreTokenizer(_single_digits)
FALCON = PreTokenizer(_falcon)
THREE_DIGITS = PreTokenizer(_splits(_words(r"\p{N}{1,3}")))
LLAMA3 = PreTokenizer(_splits(_words(r"\p{N}{1,3}")), ignore_merges=True, add_bos=True)
QWEN2 = PreTokenizer(_splits(_words(r"\p{N}")), nfc=True)
GPT4O = PreTokenizer(_splits(_cased_words(r"\p{N}{1,3}", f"{CONTRACTIONS}?")))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    # Files from before there were names have none; this is how they were read then.
    "default": FALCON,
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "trillion", "granite-docling"), GPT2),
    **dict.fromkeys(("olmo", "mpt"), NEOX),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), STARCODER),
    "command-r": PreTokenizer(_single_digits, nfc=True),
    "falcon": FALCON,
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe", "glm4"), THREE_DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), QWEN2),
    "qwen35": PreTokenizer(_splits(_words(r"\p{N}", marks=r"\p{M}")), nfc=True),
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
    "tekken": PreTokenizer(_splits(_cased_words(r"\p{N}", "")), ignore_merges=True, add_bos=True),
    "deepseek-llm": PreTokenizer(
        _splits(
            "[\r\n]",
            rf"\s?[{_letters(CASED_LETTERS)}]+",
            rf"\s?[{PUNCTUATION}]+",
            r"\s+$",
            HAN_AND_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer(
        _splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", HAN_AND_HANGUL, r"\p{N}")
    ),
    "deepseek-v3": PreTokenizer(
        _splits(
            r"\p{N}{1,3}",
            HAN_AND_KANA,
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"""
            rf"[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
        )
    ),
}
