"""What credentials allow: whose events, in which environments and projects."""

from typing import NamedTuple

from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord
from recallflow.events import Event
from recallflow.records import Principal


class Grant(NamedTuple):
    """What somebody who shows credentials may send. None is any: of tenants, and of the tenant's projects, environments
    and users. `name`: who it is, as an operator knows it."""

    name: str
    tenant_id: str | None
    projects: tuple[str, ...] | None
    environments: frozenset[str] | None
    end_users: frozenset[str] | None

    def check(self, event: Event, end_user: str | None) -> None:
        """Raises InvalidRecord (`forbidden`) for an event that is not allowed. `end_user`: for whom it was sent, where
        that was said. Which projects it may read and change is seen where memories are."""
        if self.tenant_id not in (None, event.tenant_id):
            raise refusal("forbidden", "tenant_id", "the credentials are for another tenant")
        if self.environments is not None and event.environment not in self.environments:
            raise refusal("forbidden", "environment", "the credentials are for other environments")
        if self.end_users is not None and event.user_id not in self.end_users:
            raise refusal("forbidden", "user_id", "the credentials are for other users")
        if end_user is not None and end_user != event.user_id:
            raise refusal("forbidden", "user_id", "x-end-user-id names another user: send each event for its own")

    def check_tenant(self, tenant_id: str, end_user: str | None, *, decides: bool) -> None:
        """Raises InvalidRecord (`forbidden`) where the credentials do not let their holder see what was decided about a
        whole tenant, or, with `decides`, decide it anew: that takes a key for any tenant."""
        if self.tenant_id not in (None, tenant_id):
            raise refusal("forbidden", "tenant_id", "the credentials are for another tenant")
        if (self.projects, self.environments, self.end_users, end_user) != (None, None, None, None):
            raise refusal("forbidden", "", "the credentials are for a part of the tenant only, and this is about all")
        if decides and self.tenant_id is not None:
            raise refusal("forbidden", "", "who decides has a key for any tenant (recallflow keys create '*')")

    def ids(self, end_user: str | None) -> dict[str, str]:
        """Return the ids of which credentials name exactly one, by the fields of events. `end_user`: see `check`."""
        tenants = None if self.tenant_id is None else (self.tenant_id,)
        users = self.end_users if end_user is None else (end_user,)
        named = {"tenant_id": tenants, "user_id": users, "environment": self.environments, "project_id": self.projects}
        return {field: next(iter(names)) for field, names in named.items() if names is not None and len(names) == 1}

    @property
    def principal(self) -> Principal:
        """Who sends, for what comes after the verdict."""
        return Principal(self.name, self.projects)


def refusal(code: ErrorCode, field: str, problem: str) -> InvalidRecord:
    """Why credentials do not hold. Nothing that a sender wrote may be in it, and nothing that tells what there is."""
    return InvalidRecord(code, [FieldProblem(field, problem)])
