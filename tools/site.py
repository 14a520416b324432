"""Hooks of mkdocs.yml: generated pages and files, and code blocks in the form that the site needs."""

import json
import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from recallflow.schema import asyncapi
from tools import dashboard
from tools.reference import PAGES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, AsyncAPI document and dashboard before links are checked."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    files.append(File.generated(config, "asyncapi.json", content=json.dumps(asyncapi(), indent=2)))
    files.append(File.generated(config, "monitoring/dashboard.json", content=dashboard.text()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Remove the second word of code fences, which selects the test of a block."""
    return re.sub(r"^(```\w+) .+$", r"\1", markdown, flags=re.M)
