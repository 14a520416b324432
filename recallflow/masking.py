"""Masking of credentials in records and log lines.

A JSON field is masked by its name, at any depth, also in incomplete JSON. recallflow's own credentials are masked by
their shape anywhere. All other bytes are unchanged.
"""

import json
import logging
import re

import orjson

from recallflow.credentials import API_KEY_SHAPE, TOKEN_SHAPE

MASK = b"***"
# Suffixes of field names that hold credentials, in lower case and without separators.
_ENDINGS = (
    *("token", "apikey", "authorization", "password", "passwd", "passphrase", "secret", "secrets", "jwt"),
    *("credential", "credentials", "cookie", "cookies", "privatekey", "secretkey", "accesskey", "masterkey"),
)
_NAMES = re.compile(rb"token|key|authori|passw|passphrase|secret|jwt|credential|cookie|\\u00", re.IGNORECASE)
_SEPARATORS = re.compile(r"[^a-z0-9]+")
# The patterns run in linear time on any bytes.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRINGS = re.compile(rb"(" + _STRING + rb")(\s*+:)?", re.DOTALL)
_VALUE = re.compile(rb"\s*+(?:(?P<scalar>" + _STRING + rb'|[^\s,"{}\[\]]++)|(?P<opening>[{\[]))', re.DOTALL)
_BRACKETS = re.compile(_STRING + rb"|([{\[])|([}\]])", re.DOTALL)
_OWN = re.compile(rb"(" + API_KEY_SHAPE + rb")[A-Za-z0-9_-]++|" + TOKEN_SHAPE + rb"[A-Za-z0-9_-]*+")
_LOOSE_PAIR = re.compile(rb'("[^"\\\n]{1,64}+")(\s*+:\s*+)(?!"\*\*\*")"[^"]*+"?')
_QUOTED_PAIR = re.compile(
    r"('[^'\n]*?(?:token|key|authorization|password|secret|credentials?)'\s*[:=]\s*)b?'[^'\n]*'", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9+/._~=-]{8,}", re.IGNORECASE)


def mask(data: bytes) -> tuple[bytes, int]:
    """Return bytes with masked credentials, and the number of masked values."""
    masked, fields = data, 0
    if _NAMES.search(data):
        masked, fields = _mask_fields(data)
        if not _is_json(masked):  # after an unbalanced quote, every later name would be parsed as a value
            masked, more = _LOOSE_PAIR.subn(_mask_pair, masked)
            fields += more
    masked, shapes = _OWN.subn(lambda found: (found[1] or b"") + MASK, masked)
    return masked, fields + shapes


def mask_text(text: str) -> str:
    """Return a log line with masked credentials, also in Python literals and headers."""
    masked = mask(text.encode(errors="surrogateescape"))[0].decode(errors="surrogateescape")
    return _BEARER.sub(r"\1 ***", _QUOTED_PAIR.sub(r"\1'***'", masked))


class MaskingFormatter(logging.Formatter):
    """Formatter that masks credentials."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except ValueError:
        return False
    return True


def _mask_pair(found: re.Match[bytes]) -> bytes:
    return found[1] + found[2] + b'"' + MASK + b'"' if _holds_credential(found[1]) else found[0]


def _mask_fields(data: bytes) -> tuple[bytes, int]:
    kept, count, end = list[bytes](), 0, 0
    at = 0
    while (name := _STRINGS.search(data, at)) is not None:
        at = name.end()
        if name[2] is None or not _holds_credential(name[1]) or (value := _VALUE.match(data, at)) is None:
            continue
        if value["opening"] is not None:
            begin, at = value.start("opening"), _closing(data, value.start("opening"))
        else:
            begin, at = value.span("scalar")
            if value["scalar"] in (b"null", b"true", b"false", b'""'):
                continue
        kept += data[end:begin], b'"', MASK, b'"'
        end, count = at, count + 1
    return b"".join((*kept, data[end:])), count


def _holds_credential(name: bytes) -> bool:
    """Return whether a field name (with JSON quotes) holds a credential."""
    text = name.decode(errors="replace")
    if "\\" in text:
        try:
            text = json.loads(text)
        except ValueError:
            return False
    return _SEPARATORS.sub("", text.lower()).endswith(_ENDINGS)


def _closing(data: bytes, begin: int) -> int:
    """Return the end of the object or list at an offset; the end of the bytes if it is not closed."""
    depth = 0
    for found in _BRACKETS.finditer(data, begin):
        depth += (found[1] is not None) - (found[2] is not None)
        if depth == 0:
            return found.end()
    return len(data)
