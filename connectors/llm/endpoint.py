"""Where a model is, as settings say it."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from recallflow.errors import UsageError

OPENAI_URL = "https://api.openai.com/v1"


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
        pairs = [header.partition(":") for header in self.headers]
        if not all(name.strip() and colon for name, colon, _ in pairs):
            raise UsageError("each header for a model must be given as NAME: VALUE")
        return {name.strip(): value.strip() for name, _, value in pairs}
