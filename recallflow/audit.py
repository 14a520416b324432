"""The access record: who asked for whose memory, when, and what came of it."""

from typing import Literal

from recallflow.fields import Model


class AuditRecord(Model):
    """One query that was answered or refused, one event that was refused for its sender, or one `user.erase`.

    `time`: when the log took it in. `principal`: the name of the credentials that it came with, null where none were
    asked for or none hold. `type`, `tenant_id`, `user_id`, `environment`, `id`: as the record says, null where it
    cannot be read, and of a `user.erase` without an environment, which is for all. `status`: as the response's, or
    `error` of what was refused; `code`: why. `memories`: how many the answer tells of. No text of a memory or a
    question is in it, and no credentials."""

    type: str | None
    time: str
    principal: str | None
    tenant_id: str | None
    user_id: str | None
    environment: str | None
    id: str | None
    position: str
    status: Literal["ok", "degraded", "error"]
    code: str | None
    memories: int | None
