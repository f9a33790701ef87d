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
_PLAIN, _ESCAPE = "-A-Za-z0-9._~!$&'()*+,;=@", "%[0-9A-Fa-f]{2}"  # of a URI
_PATH = f"(?:[{_PLAIN}:/]|{_ESCAPE})"
_SEGMENT, _FIRST = f"(?:[{_PLAIN}:]|{_ESCAPE})", f"(?:[{_PLAIN}]|{_ESCAPE})"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"
_HOST = f"//[A-Za-z0-9._~-]+(?::[0-9]{{1,4}})?(?:/{_SEGMENT}*)*"
# A path that does not begin with `//`; without a scheme, its first segment has no colon.
_REST = f"(?:/{_SEGMENT}*)*"
_LOCAL_PATH = f"(?:/{_SEGMENT}+{_REST}|{_FIRST}+{_REST}|/)?"
_PATH_OF_SCHEME = f"(?:/?{_SEGMENT}+{_REST}|/)?"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_PREFIX, _PREFIX6 = "(?:[12]?[0-9]|3[0-2])", "(?:[1-9]?[0-9]|1[01][0-9]|12[0-8])"
# Without bits behind the prefix.
_NETWORK = (
    rf"(?:{_IPV4}(?:/32)?|{_BYTE}\.{_BYTE}\.{_BYTE}\.0/24|{_BYTE}\.{_BYTE}\.0\.0/16"
    rf"|{_BYTE}\.0\.0\.0/8)"
)
_HEX, _H4 = "[0-9A-Fa-f]{1,4}", "[0-9a-f]{4}"
_IPV6 = "(?:{})".format(  # in full, or with `::` after so many groups
    "|".join(
        [
            f"(?:{_HEX}:){{7}}{_HEX}",
            f"(?:{_HEX}:){{1,7}}:",
            *(f"(?:{_HEX}:){{{num}}}(?::{_HEX}){{1,{7 - num}}}" for num in range(1, 7)),
            f":(?::{_HEX}){{1,7}}",
            "::",
        ]
    )
)
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
    "base64url": "^(?:[A-Za-z0-9_-]{4})*$",  # some readers want padding, others none
    "json-pointer": "^(?:/(?:[^~/]|~[01])*)*$",
    "relative-json-pointer": "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^~/]|~[01])*)*)$",
    "uri-reference": (
        rf"^(?:(?:{_SCHEME})?{_HOST}|{_SCHEME}{_PATH_OF_SCHEME}|{_LOCAL_PATH})"
        rf"(?:\?{_PATH}*)?(?:#{_PATH}*)?$"
    ),
    "uri-template": rf"^(?:{_PATH}|\{{[A-Za-z0-9_,.]+\}})*$",
    # Those that pydantic and zod write.
    **{
        f"uuid{version}": f"^{_H4}{_H4}-{_H4}-{version}[0-9a-f]{{3}}-[89ab][0-9a-f]{{3}}-{_H4 * 3}$"
        for version in (1, 3, 4, 5, 6, 7, 8)
    },
    "ipvanyaddress": f"^(?:{_IPV4}|{_IPV6})$",
    **{f"{kind}interface": f"^{_IPV4}(?:/{_PREFIX})?$" for kind in ("ipv4", "ipvany")},
    "ipv6interface": f"^{_IPV6}(?:/{_PREFIX6})?$",
    **{f"{kind}network": f"^{_NETWORK}$" for kind in ("ipv4", "ipvany")},
    "ipv6network": f"^{_IPV6}(?:/128)?$",
    "cidrv4": f"^{_IPV4}/{_PREFIX}$",
    "cidrv6": f"^{_IPV6}/{_PREFIX6}$",
    "mac": "^[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}$",
    "e164": r"^\+[1-9][0-9]{6,14}$",
    "ulid": "^[0-7][0-9A-HJKMNP-TV-Z]{25}$",
    "xid": "^[0-9a-v]{20}$",
    "ksuid": "^[0-9A-Za-z]{27}$",
    "nanoid": "^[0-9A-Za-z_-]{21}$",
    "cuid": "^c[0-9a-z]{24}$",
    "cuid2": "^[a-z][0-9a-z]{23}$",
    "color": "^#[0-9A-Fa-f]{6}$",
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
    "url": "uri",
}
# The formats that allow any string; they say how a program shows or stores it.
NOTES = frozenset(
    {
        *("password", "binary", "string", "text", "textarea", "html", "markdown"),
        *("file", "path", "file-path", "directory-path"),
    }
)
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
