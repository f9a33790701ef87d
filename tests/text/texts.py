"""Texts that tokenizers treat differently, and a corpus to train small ones on."""

SAMPLES = (
    "",
    " ",
    "   ",
    "\n",
    "\n\n \t\r\n  ",
    "Hello world",
    "  Hello,  world!  ",
    "I'm sure they'LL say it's 12345 or 1,234.56 — don't you?",
    "HTTPServer camelCase snake_case kebab-case ΑΒΓαβγ ЖЗИжзи",
    "def f(x: int) -> str:\n\treturn f'{x:>10}'  # why\n\n\nif __name__ == 'main':\n    f(3)\n",
    "for (int i = 0; i < 10; ++i) { a[i] &= ~(1 << i); } /* ===== */ //////",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "我能吞下玻璃而不伤身体。これはテスト文です。한국어 문장입니다.",
    "مرحبا بالعالم، كيف حالك؟ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "👍🏽 👨‍👩‍👧‍👦 🇨🇭 🦙.cpp ☕️ 🏳️‍🌈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ½ ² Ⅷ ١٢٣",
    "e\u0301le\u0300ve re\u0301sume\u0301 A\u030a (decomposed) élève résumé Å (composed)",
    "zero\u200bwidth\u00a0no-break\u3000wide\u2028line\ufeffmark\x00null\x7fdelete",
    "=========== ----------- ........... aaaaaaaaaaa    b        c",
    "https://example.org/a/b?c=d&e=f#g user@example.org C:\\path\\to",
    "<|im_start|>user\nHi<|im_end|>\n<s>[INST] x [/INST]</s>",
    "�������� ￾ 豈 ﬁ ſt ǅ ŉ",
)

CORPUS = (
    *SAMPLES,
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox doesn't.",
    "the the the and and and that that with with this this from from they they",
    "return return self self None None True False import import class class def def",
    "der die das und ist nicht mit sich auf für eine einen einer über großen",
    "что это как его она они был была было были только ещё уже",
    "你好 世界 我们 他们 什么 可以 没有 一个 これ それ です ます 합니다 입니다",
    "0 1 2 3 10 100 1000 12 123 1234 2024 3.14 42 007",
)
