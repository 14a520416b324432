"""Whose memory a project's events go to: the user's own, or a workspace's.

The owner is part of a record's Kafka key, so whoever produces the event decides (client or gateway, from what it knows
of the user). A workspace is an owner like a user: the same partitioning, the same isolation, the same names: within a
tenant, no workspace may be called like a user. A new mapping does not move what is remembered already.
"""

import re
from collections.abc import Collection, Mapping

_PROJECT = re.compile(r"(?:https?://)?github\.com/(?P<owner>[^/\s]+)/[^/\s]", re.IGNORECASE)


def workspace_of(
    project_id: str | None, mappings: Mapping[str, str | None], organisations: Collection[str], user_id: str
) -> str:
    """The `user_id` for events about a project, under workspace routing `auto`.

    `mappings`: project owner → workspace, by the tenant's `owner.mapping` events; None revokes a mapping.
    They win over `organisations`, the ones that the user is a member of, whose workspaces are called like them. All
    else is personal. The owner is read from `github.com/<owner>/…`; upper and lower case are alike.
    """
    named = _PROJECT.match(project_id or "")
    if named is None:
        return user_id
    owner = named["owner"].casefold()
    mapped = {name.casefold(): workspace for name, workspace in mappings.items()}.get(owner)
    return mapped or {name.casefold(): name for name in organisations}.get(owner, user_id)
