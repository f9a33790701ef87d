"""Names that become a part of a prompt's form, such as the role of a message."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# A template writes them between its marks, where a line's end or a NUL would make another form.
_NO_CONTROLS = r"^[^\x00-\x1f\x7f]*(?![\s\S])"
Role = Annotated[str, Meta(min_length=1, max_length=64, pattern=_NO_CONTROLS)]
NameInPrompt = Annotated[str, Meta(max_length=256, pattern=_NO_CONTROLS)]
