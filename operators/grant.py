"""Rights of credentials: tenants, environments, projects and users."""

from typing import NamedTuple

from recallflow.errors import ErrorCode, FieldProblem, InvalidRecord
from recallflow.events import Event
from recallflow.records import Principal


class Grant(NamedTuple):
    """The rights of credentials. None means any: tenant, or the tenant's projects, environments and users. `name`
    identifies the holder to operators."""

    name: str
    tenant_id: str | None
    projects: tuple[str, ...] | None
    environments: frozenset[str] | None
    end_users: frozenset[str] | None

    def check(self, event: Event, end_user: str | None) -> None:
        """Raise InvalidRecord (`forbidden`) for an event that is not allowed. `end_user` is the declared user of the
        request. Projects are checked where memories are read."""
        if self.tenant_id not in (None, event.tenant_id):
            raise refusal("forbidden", "tenant_id", "the credentials are for another tenant")
        if self.environments is not None and event.environment not in self.environments:
            raise refusal("forbidden", "environment", "the credentials are for other environments")
        if self.end_users is not None and event.user_id not in self.end_users:
            raise refusal("forbidden", "user_id", "the credentials are for other users")
        if end_user is not None and end_user != event.user_id:
            raise refusal("forbidden", "user_id", "x-end-user-id names another user: send each event for its own")

    def check_tenant(self, tenant_id: str, end_user: str | None, *, decides: bool) -> None:
        """Raise InvalidRecord (`forbidden`) if the credentials do not permit reading a tenant's decisions, or making
        new ones (`decides`), which needs a key for any tenant."""
        if self.tenant_id not in (None, tenant_id):
            raise refusal("forbidden", "tenant_id", "the credentials are for another tenant")
        if (self.projects, self.environments, self.end_users, end_user) != (None, None, None, None):
            raise refusal("forbidden", "", "the credentials are for a part of the tenant only, and this is about all")
        if decides and self.tenant_id is not None:
            raise refusal("forbidden", "", "who decides has a key for any tenant (recallflow keys create '*')")

    def ids(self, end_user: str | None) -> dict[str, str]:
        """Return the ids that the credentials determine uniquely, by event field. `end_user`: see `check`."""
        tenants = None if self.tenant_id is None else (self.tenant_id,)
        users = self.end_users if end_user is None else (end_user,)
        named = {"tenant_id": tenants, "user_id": users, "environment": self.environments, "project_id": self.projects}
        return {field: next(iter(names)) for field, names in named.items() if names is not None and len(names) == 1}

    @property
    def principal(self) -> Principal:
        """The sender, for later steps."""
        return Principal(self.name, self.projects)


def refusal(code: ErrorCode, field: str, problem: str) -> InvalidRecord:
    """Return an error about credentials. It must not quote the sender, nor reveal existing names."""
    return InvalidRecord(code, [FieldProblem(field, problem)])
