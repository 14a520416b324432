"""Bytes that are JSON in another wrapping than plain UTF-8: which, so that a refusal can name it."""

import codecs

_MARKS = (  # the longer ones first: UTF-32's mark begins with UTF-16's
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_FRAME_BYTES = 5  # a schema registry's: a zero byte, and the schema's id in four


def unmarked(value: bytes) -> bytes:
    """UTF-8 without the byte order mark that some editors and shells put before it."""
    return value.removeprefix(codecs.BOM_UTF8)


def wrapping(value: bytes) -> str | None:
    """What is wrong with bytes that are no JSON, and what to do, where it shows from how they begin."""
    for mark, name in _MARKS:
        if value.startswith(mark):
            return f"is {name}; send UTF-8"
    zeros = [byte == 0 for byte in value[:8].ljust(8, b" ")]
    if zeros == [False, True, True, True] * 2 or zeros == [True, True, True, False] * 2:
        return "is UTF-32; send UTF-8"
    # A line of UTF-16 that was cut at its line feed begins with the rest of that, a zero.
    if zeros[:4] in ([False, True, False, True], [True, False, True, False]):
        return "is UTF-16; send UTF-8"
    schema = int.from_bytes(value[1:_FRAME_BYTES], "big")
    if zeros[0] and schema > 0 and len(value) > _FRAME_BYTES:
        return f"is framed by a schema registry (schema {schema}); send plain JSON, without the registry's serializer"
    return None
