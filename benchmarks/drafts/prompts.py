"""Prompts for the benchmark of speculation: some whose answers repeat them, and ordinary ones."""

from __future__ import annotations

_CODE = """\
class Inventory:
    def __init__(self, items=None):
        self.items = dict(items or {})

    def add(self, name, count=1):
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count=1):
        if self.items.get(name, 0) < count:
            raise KeyError(f"there are not {count} of {name}")
        self.items[name] -= count
        if not self.items[name]:
            del self.items[name]

    def total(self):
        return sum(self.items.values())
"""
_JSON = """\
{"orders": [
  {"id": 1041, "customer": "Miriam Falk", "city": "Oslo", "items": ["lamp", "chair"], "paid": true},
  {"id": 1042, "customer": "Tomas Reyes", "city": "Lima", "items": ["desk"], "paid": false},
  {"id": 1043, "customer": "Aiko Tanaka", "city": "Kobe", "items": ["shelf", "rug"], "paid": true},
  {"id": 1044, "customer": "Lena Brandt", "city": "Kiel", "items": ["lamp", "desk"], "paid": false}
]}
"""
_TEXT = """\
The harbour of the old town lies behind a wall of granite that was built in 1782. Every morning at
six, the ferries leave for the islands of Hestra, Norholm and Little Skerry. They carry post, bread
and newspapers, and return in the evening with fish, wool and visitors. In winter, when the ice is
thick, a single icebreaker keeps the channel open, and the timetable hangs in the window of the
baker's shop.
"""
_TABLE = """\
| name | city | year | amount |
| --- | --- | --- | --- |
| Miriam Falk | Oslo | 2019 | 1,250 |
| Tomas Reyes | Lima | 2020 | 980 |
| Aiko Tanaka | Kobe | 2021 | 2,310 |
| Lena Brandt | Kiel | 2022 | 1,775 |
"""

REPETITIVE = (
    f"Repeat this code, without any change:\n\n```python\n{_CODE}```",
    f"Rename the class Inventory to Stock and write the whole code again:\n\n```python\n{_CODE}```",
    f"Add a docstring to the method total and give me the complete file:\n\n```python\n{_CODE}```",
    f"Return exactly this JSON document:\n\n```json\n{_JSON}```",
    f"Set paid to true in every order and return the whole JSON document:\n\n```json\n{_JSON}```",
    f"Copy the following text word by word:\n\n{_TEXT}",
    f"Correct the spelling of this text, and write all of it out again:\n\n{_TEXT}",
    f"Add a row for Peter Hall, Cork, 2023, 640 and print the whole table:\n\n{_TABLE}",
)
ORDINARY = (
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Explain to a child why the sky is blue.",
    "What are the advantages and disadvantages of living in a big city?",
    "Describe how bread is made, from the field to the table.",
    "Write an email to a colleague about a meeting that has to be moved.",
    "Who was Marie Curie, and why is she famous?",
    "Give me some advice on how to learn a new language.",
    "Compare trains and aeroplanes as means of transport.",
)
