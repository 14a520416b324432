"""Where a model is, as settings say it."""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from recallflow.errors import UsageError

OPENAI_URL = "https://api.openai.com/v1"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[!-~]([\t -~]*[!-~])?")  # what HTTP takes for a header's


class Endpoint(NamedTuple):
    """Where calls go. `base_url`: None for OpenAI's own; `headers`: further ones, each as `Name: value`; `timeout_s`:
    for each attempt."""

    base_url: str | None = None
    key: str | None = None
    headers: tuple[str, ...] = ()
    timeout_s: float = 30.0

    @property
    def url(self) -> str:
        """Raises UsageError for what is no URL, or has a user or a password in it, which logs would show."""
        url = self.base_url or OPENAI_URL
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            fits = False
        if not fits:
            raise UsageError("a model's base URL must begin with http:// or https:// and name a host")
        if "@" in parts.netloc:
            raise UsageError("a model's base URL must have no user or password in it: give the key by its own setting")
        return url

    @property
    def is_openai(self) -> bool:
        return urlsplit(self.url).hostname == urlsplit(OPENAI_URL).hostname

    @property
    def named_headers(self) -> Mapping[str, str]:
        """Name → value. Raises UsageError."""
        pairs = [(name.strip(), value.strip()) for name, _, value in (header.partition(":") for header in self.headers)]
        if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in pairs):
            raise UsageError("each header for a model must be given as NAME: VALUE")
        return dict(pairs)

    def check(self) -> None:
        """Raises UsageError for what cannot be called. No message shows what was given, which may be a secret."""
        _ = self.url, self.named_headers
        if self.key is not None and not _VALUE.fullmatch(self.key):
            raise UsageError("a model's key must be of printable ASCII characters, in one line")
