"""The hook of mkdocs.yml: adds the pages that are made from the code."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.reference import PAGES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Before links are looked at, so that those to and from these pages are checked as any other."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files
