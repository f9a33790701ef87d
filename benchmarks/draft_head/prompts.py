"""Prompts for training a drafter: made from templates, and different from those that measure it."""

from __future__ import annotations

import random

from benchmarks.drafts.prompts import ORDINARY

_TOPICS = """
a lighthouse; bees and honey; the moon; a small bakery; volcanoes; the history of paper; bicycles;
solar energy; learning the piano; the Roman Empire; ocean currents; healthy sleep; a haunted
house; public libraries; coffee; chess; the human heart; recycling; a lost dog; dinosaurs; the
stock market; gardening; a robot that learns to paint; photosynthesis; the printing press; time
management; sailing; the French Revolution; black holes; a village school; vaccines; rivers;
artificial intelligence; a dragon who is afraid of fire; bread; the water cycle; online privacy;
teamwork; mountains; the invention of the telephone; friendship; electric cars; a spy in Vienna;
whales; budgets; meditation; the Silk Road; cats; earthquakes; a birthday party; databases;
gravity; the Olympic Games; tea; castles; insects; a journey to Mars; job interviews; the Great
Wall of China; rainbows; music theory; a broken clock; climate change; the immune system;
football; a magic garden; poetry; maps; the Industrial Revolution; owls; cooking rice; public
speaking; a winter storm; the brain; bridges; Python programming; the desert; dreams; trains;
penguins; the Renaissance; a secret tunnel; atoms; breakfast; running a marathon; languages; the
Second World War; a talking tree; newspapers; sharks; motivation; the internet; stars; a school
play; camping; democracy; chocolate; fractions; the Amazon rainforest; an old sailor; salt; remote
work; the Vikings; butterflies; kindness; photography; inflation; an island without a name; the
theory of evolution; yoga; glaciers; markets; a night train; swimming; William Shakespeare; Albert
Einstein; Leonardo da Vinci; Cleopatra; Isaac Newton; Nelson Mandela; Frida Kahlo; Ada Lovelace;
Mahatma Gandhi; Amelia Earhart; Ludwig van Beethoven; Florence Nightingale; Charles Darwin;
Confucius
"""
_TASKS = (
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Explain {} in simple words.",
    "Explain {} to a ten-year-old.",
    "What is the most important thing to know about {}?",
    "Give me five facts about {}.",
    "Write a short essay about {}.",
    "Why does {} matter?",
    "Summarise what you know about {} in one paragraph.",
    "What are the advantages and disadvantages of {}?",
    "How would you describe {} to a person who has never heard of it?",
    "Write a dialogue between two people about {}.",
    "Write an e-mail to a friend about {}.",
    "Write a letter to a newspaper about {}.",
    "List some common questions about {} and answer them.",
    "Give me some advice on {}.",
    "What can we learn from {}?",
    "Tell me about {}.",
    "Describe {} in detail.",
    "Write an introduction to a talk about {}.",
    "What would the world be like without {}?",
    "Make a plan for a lesson about {}.",
    "Write three headlines about {}.",
    "Compare {} and {}.",
    "How are {} and {} connected?",
    "Write a story in which {} and {} meet.",
    "I am interested in {}. Where should I start?",
    "Who is interested in {}, and why?",
    "Write step-by-step instructions that have to do with {}.",
    "Write a blog post about {}.",
    "What is the history of {}?",
    "Write a product description that mentions {}.",
)
_SINGLE = (
    "What is the capital of {}?",
    "Plan a trip of three days to {}.",
    "What food is {} famous for?",
    "Describe the geography of {}.",
    "What should a visitor to {} know?",
)
_PLACES = (
    "France; Japan; Brazil; Kenya; Canada; Italy; Egypt; India; Norway; Mexico; Greece; Australia; "
    "Peru; Turkey; Spain; Vietnam; Ireland; Morocco; Germany; Thailand; New Zealand; Argentina; "
    "Poland; China; Portugal; South Africa; Sweden; Indonesia; Chile; Iceland"
)
_CODE = (
    "Write a Python function that {}.",
    "How do I {} in Python?",
    "Explain with an example how a program can {}.",
)
_JOBS = """
reverse a list; count the words of a text; find the largest of several numbers; sort names by
their length; read a file line by line; compute an average; check whether a number is prime;
remove duplicates from a list; convert degrees Celsius to Fahrenheit; merge two dictionaries;
reverse a string; sum the digits of a number; draw a random number; find a word in a text; write a
list to a file; compute a factorial
"""
MOST = 10_000  # prompts; the templates give several times as many
# Prompts by which a trained drafter is judged; like those of the benchmarks, none is trained with.
HELD_OUT = (
    "What is the difference between weather and climate?",
    "Write a short speech for the wedding of two friends.",
    "How can I save money when I live alone?",
    "Tell me a story about a fox and a river.",
    "Explain what a computer network is.",
    "What are good habits for a student?",
    "Describe a morning at a fish market.",
    "How does a refrigerator work?",
)


def _parts(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(";")]


def make_prompts(count: int, seed: int) -> list[str]:
    """Return different prompts, in an order that the seed fixes."""
    if count > MOST:
        raise SystemExit(f"--answers {count}: the templates give {MOST} different prompts at most")
    generator = random.Random(seed)
    topics, places, jobs = _parts(_TOPICS), _parts(_PLACES), _parts(_JOBS)
    kinds = ((_TASKS, topics, 0.85), (_SINGLE, places, 0.08), (_CODE, jobs, 0.07))
    found: dict[str, None] = {}
    barred = {*HELD_OUT, *ORDINARY}
    while len(found) < count:
        chosen = generator.choices(kinds, [share for *_, share in kinds])[0]
        template, subjects = generator.choice(chosen[0]), chosen[1]
        prompt = template.format(*generator.sample(subjects, 2))
        if prompt not in barred:
            found[prompt] = None
    return list(found)
