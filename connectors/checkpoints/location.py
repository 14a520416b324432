"""Where checkpoints are kept: a URL of pyarrow's file systems.

    s3://bucket/prefix?region=eu-west-1                       AWS
    s3://bucket/prefix?endpoint_override=minio:9000&scheme=http   any service of its protocol
    gs://bucket/prefix
    file:///mnt/backups/recallflow

Credentials are where AWS's and Google's own tools have theirs, never in the URL, which logs and `ps` show."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from recallflow.errors import UsageError

SCHEMES = ("s3", "gs", "file")
ONE_PUT = "allow_delayed_open=true"  # a small object is sent with one request, and is there with its last byte


class Location(NamedTuple):
    """`root`: bucket and prefix, or folder. `shown`: the URL as messages have it."""

    filesystem: fs.FileSystem
    root: str
    shown: str


def locate(url: str) -> Location:
    """Raises UsageError with every wrong field, and OSError where the store has to be asked for its region, and does
    not answer."""
    scheme, colon, rest = url.partition(":")
    if ":" in rest.rpartition("@")[0] and scheme != "file":
        raise UsageError(
            "URL of checkpoints: credentials: they do not belong in it, where logs and other users see them; set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        )
    parts = urlsplit(url)
    shown = f"{parts.scheme}:{'//' if rest.startswith('//') else ''}{parts.netloc}{parts.path}" if colon else url
    if problems := [*_problems(parts)]:
        raise UsageError(f"URL of checkpoints ({shown}): {'; '.join(problems)}")
    if parts.scheme == "file":
        return Location(fs.LocalFileSystem(), str(Path(unquote(parts.path)).absolute()), shown)
    asked = f"{url}{'&' if parts.query else '?'}{ONE_PUT}" if parts.scheme == "s3" else url
    try:
        filesystem, root = fs.FileSystem.from_uri(asked)
    except pa.ArrowInvalid as error:
        raise UsageError(f"URL of checkpoints ({shown}): options: {error}") from None
    return Location(filesystem, root.rstrip("/"), shown)


def _problems(parts: SplitResult) -> list[str]:
    if parts.scheme not in SCHEMES:
        named = f"{parts.scheme} is none" if parts.scheme else "is missing"
        return [f"scheme: {named} of {', '.join(SCHEMES)}; a folder is file:///mnt/backups"]
    found = []
    if parts.scheme == "file":
        if parts.netloc:
            found.append(f"host: {parts.netloc}: a folder has none, and begins behind file://")
        if not parts.path:
            found.append("path: is missing: name a folder")
        if parts.query:
            found.append("options: a folder takes none")
    elif not parts.netloc.rpartition("@")[2]:
        found.append("bucket: is missing")
    if parts.fragment:
        found.append("fragment: # has no meaning here")
    return found
