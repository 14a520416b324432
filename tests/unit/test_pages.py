"""The Python and shell examples of docs/ work and print the shown output; with a broker: tests/kafka/test_pages.py."""

import re
import shlex
from pathlib import Path

import pytest

from recallflow.cli.commands import commands
from tests.pages import DOCS, FENCED, RUN, blocks, run

pytestmark = pytest.mark.examples
LOCAL = (
    "concepts/overview.md", "how-to/assistant.md", "how-to/backfill.md", "how-to/evaluation.md",
    "how-to/from-mem0.md", "how-to/from-zep.md", "start/python.md",
)  # fmt: skip
WITH_A_BROKER = ("start/quickstart.md", "how-to/chat-platform.md", "how-to/cloudevents.md", "how-to/runbook.md")
# Pages whose blocks run elsewhere, or show calls without their surroundings.
NOT_RUN = (
    "how-to/access-control.md", "how-to/checkpoints.md", "how-to/control-events.md", "how-to/dead-letters.md",
    "how-to/embedders.md", "how-to/encryption.md", "how-to/erasure.md", "how-to/frameworks.md", "how-to/gateway.md",
    "how-to/graph-rollout.md", "how-to/install.md", "how-to/kafka.md", "how-to/kafka-authentication.md",
    "how-to/mcp.md", "how-to/mem0-clients.md", "how-to/models.md", "how-to/monitoring.md", "how-to/quotas.md",
    "how-to/settings.md", "how-to/schema-registry.md", "how-to/several-machines.md", "how-to/state.md",
    "how-to/tracing.md", "how-to/zep-clients.md",
)  # fmt: skip
WITHOUT_BLOCKS = (
    "comparison.md", "figures.md", "how-to/alerts.md", "how-to/importing.md", "how-to/kubernetes.md",
    "how-to/upgrading.md", "index.md",
)  # fmt: skip


@pytest.mark.parametrize("page", LOCAL)
def test_examples_of_a_page_work(page: str, tmp_path: Path) -> None:
    ran = 0
    for block in blocks(page):
        assert block.language != "sh"
        printed = run(block.language, block.code, tmp_path)
        assert [line for line in block.shows if line not in printed] == [], printed
        ran += 1
    assert ran > 0


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_documented_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = commands()
    for _, code in FENCED.findall(page.read_text()):
        for line in re.findall(r"^(?:\$ )?recallflow (.+)$", code.replace("\\\n", " "), re.M):
            if "…" not in line:
                command = re.split(r" <<| &$|\s+#", line)[0]
                try:
                    parser.parse_args(shlex.split(command))
                except SystemExit:
                    pytest.fail(f"recallflow {line}: {capsys.readouterr().err}")


def test_every_page_of_the_guide_is_run() -> None:
    guide = {path.relative_to(DOCS).as_posix() for path in (*(DOCS / "how-to").glob("*.md"), *DOCS.glob("index.md"))}
    assert guide <= {*LOCAL, *WITH_A_BROKER, *NOT_RUN, *WITHOUT_BLOCKS}
    for page in WITHOUT_BLOCKS:
        assert [language for language, _ in FENCED.findall((DOCS / page).read_text()) if language in RUN] == [], page
