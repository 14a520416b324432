"""Whose memory a project's events go to: the user's own, or a workspace's.

The owner is part of a record's Kafka key, so whoever produces the event decides (client or gateway, from what it knows
of the user). A workspace is an owner like a user: the same partitioning, the same isolation, the same names: within a
tenant, no workspace may be called like a user. A new mapping does not move what is remembered already.
"""

import re
from collections.abc import Collection, Mapping

# `github.com/OWNER/REPOSITORY` as an id, a URL (also with credentials and a port), or the SSH remote of a clone.
_PROJECT = re.compile(
    r"(?:(?:https?|ssh|git|git\+ssh)://)?(?:[^@/\s]+@)?(?:www\.)?github\.com(?::\d+)?[/:]/?(?P<owner>[^/:\s]+)/[^/\s]",
    re.IGNORECASE,
)


def workspace_of(
    project_id: str | None, mappings: Mapping[str, str | None], organisations: Collection[str], user_id: str
) -> str:
    """Return the `user_id` for events about a project, under workspace routing `auto`.

    The project's owner is read from `github.com/<owner>/…`, from its URL, or from the SSH remote of a clone
    (`git@github.com:<owner>/…`); upper and lower case are alike. Every other project is personal.

    Args:
        mappings: project owner → workspace, by the tenant's `owner.mapping` events; None revokes a mapping.
        organisations: those that the user is a member of. Their workspaces have their names; mappings win.
    """
    named = _PROJECT.match(project_id or "")
    if named is None:
        return user_id
    owner = named["owner"].casefold()
    mapped = {name.casefold(): workspace for name, workspace in mappings.items()}.get(owner)
    return mapped or {name.casefold(): name for name in organisations}.get(owner, user_id)
