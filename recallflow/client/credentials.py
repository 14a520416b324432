"""What a client proves itself with."""

import re
from collections.abc import Callable

from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, ApiKeyText
from recallflow.errors import UsageError
from recallflow.tracing import trace_headers

Headers = tuple[tuple[str, bytes | None], ...]
Token = str | Callable[[], str]
_TOKEN = re.compile(r"[!-~]+")


class Credentials:
    """An API key or a token, if any, and the one user that everything is done for, if there is one. No message shows a
    secret."""

    def __init__(self, api_key: str | None = None, token: Token | None = None, end_user: str | None = None) -> None:
        """`token`: a JWT, or what gives a fresh one. Raises UsageError for what nobody could be known by."""
        if api_key is not None and token is not None:
            raise UsageError("api_key and token are one thing: give one of them")
        if api_key is not None and not (isinstance(api_key, str) and ApiKeyText.parse(api_key)):
            raise UsageError("api_key is none: give all that `recallflow keys create` printed, rfk_…")
        self._api_key, self._token, self._end_user = api_key, token, end_user
        if not callable(token):
            self._token_header()

    def __repr__(self) -> str:
        return "Credentials(…)"

    def headers(self, user_id: str) -> Headers:
        """Those of a record about a user, with the span that is current as its parent. Raises UsageError where the user
        is not the one that the client is for."""
        if self._end_user is not None and user_id != self._end_user:
            raise UsageError(f"user_id is {user_id!r}, and this client is for {self._end_user!r}")
        user = () if self._end_user is None else ((USER_HEADER, user_id.encode()),)
        key = () if self._api_key is None else ((KEY_HEADER, self._api_key.encode()),)
        return (*key, *self._token_header(), *user, *trace_headers())

    def _token_header(self) -> Headers:
        if self._token is None:
            return ()
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise UsageError("token is no JWT: give its text, or what gives that")
        return ((TOKEN_HEADER, b"Bearer " + token.encode()),)
