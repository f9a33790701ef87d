"""The formats of strings: how each is enforced, or why it is not."""

from __future__ import annotations

from collections.abc import Mapping

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
)
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
# Without leap seconds, which most parsers refuse.
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_PATH = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"
_BASE64 = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"

# The encodings of `contentEncoding`: the alphabets of RFC 4648, and those of RFC 2045.
ENCODINGS: Mapping[str, str] = {
    "base64": f"^{_BASE64}$",
    "base64url": "^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?$",
    "base32": (
        "^(?:[A-Z2-7]{8})*(?:[A-Z2-7]{2}={6}|[A-Z2-7]{4}={4}|[A-Z2-7]{5}={3}|[A-Z2-7]{7}=)?$"
    ),
    "base16": "^(?:[0-9A-F]{2})*$",
    "quoted-printable": r"^(?:[!-<>-~]|=[0-9A-F]{2})*$",
    "7bit": r"^[\x01-\x7F]*$",
    "8bit": "",
    "binary": "",
}
# The formats as regexes of the whole string.
PATTERNS: Mapping[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_CLOCK}{_OFFSET}$",
    "date-time": f"^{_DATE}T{_CLOCK}{_OFFSET}$",
    "byte": f"^{_BASE64}$",  # OpenAPI's
    "base64": f"^{_BASE64}$",
    "json-pointer": "^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    "uri-reference": rf"^{_PATH}*(?:\?{_PATH}*)?(?:#{_PATH}*)?$",
    "uri-template": rf"^(?:{_PATH}|\{{[A-Za-z0-9_,.]+\}})*$",
}
# Regexes that are found in all texts of a format, however widely a reader understands it.
_DATE_DIGITS, _OFFSET_DIGITS = "[0-9]{4}-[0-9]{2}-[0-9]{2}", "(?:[Zz]|[+-][0-9]{2}:?[0-9]{2})?"
_CLOCK_DIGITS = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2})?(?:\.[0-9]+)?"
WIDEST: Mapping[str, str] = {
    "date": f"^{_DATE_DIGITS}$",
    "time": f"^{_CLOCK_DIGITS}{_OFFSET_DIGITS}$",
    "date-time": f"^{_DATE_DIGITS}[Tt ]{_CLOCK_DIGITS}{_OFFSET_DIGITS}$",
    "duration": "^P",
    "email": "@",
    "hostname": r"^[0-9A-Za-z_.\x80-\u{10FFFF}-]*$",
    "ipv4": r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$",
    "ipv6": "^[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%|$)",
    "uri": "^[A-Za-z][A-Za-z0-9+.-]*:",
    "uuid": "^[0-9A-Fa-f{}-]{32}",
    "byte": "^[0-9A-Za-z+/=_-]*$",
    "base64": "^[0-9A-Za-z+/=_-]*$",
    "json-pointer": "^(?:/|$)",
    "relative-json-pointer": "^[0-9]",
}
# The formats that the engine knows, by these names. Each text in the engine's format has the other.
KNOWN: Mapping[str, str] = {
    **{name: name for name in ("duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid")},
    "idn-email": "email",
    "idn-hostname": "hostname",
    "iri": "uri",
    "iri-reference": "uri-reference",
    "guid": "uuid",
    "uuid4": "uuid",
    "url": "uri",
}
# The formats that allow any string; they say how a program shows or stores it.
NOTES = frozenset({"password", "binary", "string", "text", "textarea", "html", "markdown", "file"})
# The formats of numbers, with the least and the greatest; those that only tell a size have none.
NUMBERS: Mapping[str, tuple[int, int] | None] = {
    "int8": (-(2**7), 2**7 - 1),
    "uint8": (0, 2**8 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**53) + 1, 2**53 - 1),  # what JSON's numbers carry without a loss
    "uint64": (0, 2**53 - 1),
    "float": None,
    "double": None,
    "decimal": None,
}
