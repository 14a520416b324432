"""The lines of several processes as those of one: each whole, and with the name of who wrote it."""

import contextlib
import sys
from asyncio import StreamReader
from datetime import UTC, datetime

import orjson

CHUNK_BYTES = 64 * 1024


async def relay(stream: StreamReader, name: str, *, as_json: bool) -> None:
    """Writes what a process says to standard error, until it says no more. Not through StreamReader's own lines, whose
    length is limited."""
    begun = b""
    while chunk := await stream.read(CHUNK_BYTES):
        *lines, begun = (begun + chunk).split(b"\n")
        _write(lines, name, as_json=as_json)
    if begun:  # the last words of a process that was killed
        _write([begun], name, as_json=as_json)


def labelled(line: bytes, name: str, *, as_json: bool) -> str:
    """A line with the name of its process. What is no object, as a crash of the interpreter is not, becomes one."""
    if not as_json:
        return f"{name}: {line.decode(errors='replace')}"
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {"time": time, "level": "error", "logger": "stderr", "message": line.decode(errors="replace")}
    return orjson.dumps({"member": name} | fields).decode()


def _write(lines: list[bytes], name: str, *, as_json: bool) -> None:
    text = "".join(f"{labelled(line, name, as_json=as_json)}\n" for line in lines if line)
    with contextlib.suppress(OSError):  # whoever read it is gone, which is no reason to stop working
        sys.stderr.write(text)
        sys.stderr.flush()
