"""Whose memory a project's events go to."""

import pytest

from recallflow import workspace_of

MAPPINGS = {"acme-platform": "org_acme", "gone": None, "both": "mapped"}
ORGANISATIONS = ["webrenew", "gone", "both"]


@pytest.mark.parametrize(
    ("project_id", "workspace"),
    [
        ("github.com/jane/side-project", "jane"),
        ("github.com/webrenew/memories", "webrenew"),
        ("github.com/acme-platform/backend", "org_acme"),
        ("github.com/both/code", "mapped"),  # a mapping wins over an organisation
        ("github.com/strangers/code", "jane"),  # no member of it
        ("github.com/gone/code", "gone"),  # a mapping that was taken back
        ("https://github.com/webrenew/memories", "webrenew"),
        ("github.com/WebRenew/memories", "webrenew"),
        ("GitHub.com/Acme-Platform/backend/tree/main", "org_acme"),
        ("git@github.com:webrenew/memories.git", "webrenew"),
        ("github.com:webrenew/memories.git", "webrenew"),
        ("ssh://git@github.com/webrenew/memories.git", "webrenew"),
        ("ssh://git@github.com:22/webrenew/memories", "webrenew"),
        ("git+ssh://git@github.com/webrenew/memories", "webrenew"),
        ("https://jane:token@github.com/webrenew/memories", "webrenew"),
        ("https://www.github.com/webrenew/memories", "webrenew"),
        ("git@github.com:webrenew", "jane"),
        ("git@gitlab.com:webrenew/memories.git", "jane"),
        ("https://github.com@evil.example/webrenew/memories", "jane"),
        ("https://evil.example/git@github.com:webrenew/memories", "jane"),
        ("git@github.com.evil.example:webrenew/memories", "jane"),
        ("github.com/webrenew", "jane"),
        ("github.com/webrenew/", "jane"),
        ("gitlab.com/webrenew/memories", "jane"),
        ("notgithub.com/webrenew/memories", "jane"),
        ("webrenew", "jane"),
        ("", "jane"),
        (None, "jane"),
    ],
)
def test_projects_go_to_their_owners_workspace(project_id: str | None, workspace: str) -> None:
    assert workspace_of(project_id, MAPPINGS, ORGANISATIONS, "jane") == workspace
