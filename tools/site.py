"""The hooks of mkdocs.yml: the pages that are made from the code, and blocks of code as the site reads them."""

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.reference import PAGES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Before links are looked at, so that those to and from these pages are checked as any other."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A block's second word tells tests what it is; the site would not take such a block for one."""
    return re.sub(r"^(```\w+) .+$", r"\1", markdown, flags=re.M)
