"""`make release REPOSITORY=https://…`: archives of the last commit for PyPI, the AsyncAPI document, the dashboard.

`REPOSITORY` is the address of the source. PyPI shows the README without the repository's files, so its links and
pictures need absolute addresses."""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from recallflow.schema import asyncapi
from tools import dashboard

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = (".", "packages/client", "packages/embedded")
_RELATIVE = r"(?!#|[a-z][a-z0-9+.-]*:)"  # neither an anchor nor an absolute address
_LINK = re.compile(rf"(!?)(\[[^\]]*\])\({_RELATIVE}([^)\s]+)\)")
_ATTRIBUTE = re.compile(rf'\b(href|src|srcset)="{_RELATIVE}([^"\s]+)"')


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--repository", required=True, metavar="URL", help="address of the source")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archives (default: dist)")
    options = parser.parse_args(arguments)
    if any(options.out.glob("recallflow*")):
        parser.error(f"{options.out} contains earlier archives: remove them")
    for path in [*build(options.repository.rstrip("/"), options.out), *generated(options.out)]:
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)


def build(repository: str, out: Path) -> list[Path]:
    """Build and check a wheel and a source archive of each distribution."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        version = _version(tree)
        urls = _urls(repository, version)
        for name in DISTRIBUTIONS:
            project, readme = tree / name / "pyproject.toml", tree / name / "README.md"
            project.write_text(f"{project.read_text()}\n{urls}")
            readme.write_text(absolute(readme.read_text(), repository, f"v{version}"))
            subprocess.run([sys.executable, "-m", "build", "--outdir", out, tree / name], check=True)
    made = sorted(out.glob(f"recallflow*-{version}*"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *made], check=True)
    return made


def generated(out: Path) -> list[Path]:
    """Write the AsyncAPI document and the Grafana dashboard."""
    files = {"asyncapi.json": json.dumps(asyncapi(), indent=2) + "\n", "dashboard.json": dashboard.text()}
    for name, text in files.items():
        (out / name).write_text(text, "utf-8")
    return [out / name for name in files]


def absolute(readme: str, repository: str, tag: str) -> str:
    """Return a README whose links and pictures have the addresses of a tag's files."""

    def place(path: str, *, picture: bool) -> str:
        return f"{repository}/{'raw' if picture else 'blob'}/{tag}/{path}"

    linked = _LINK.sub(lambda m: f"{m[1]}{m[2]}({place(m[3], picture=m[1] == '!')})", readme)
    return _ATTRIBUTE.sub(lambda m: f'{m[1]}="{place(m[2], picture=m[1] != "href")}"', linked)


def _version(tree: Path) -> str:
    """Return the version of a tree, which must be the newest one of the changelog."""
    module = (tree / "recallflow" / "distribution.py").read_text()
    (version,) = re.findall(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    newest = re.findall(r"^## (.+)$", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    if newest.split()[0] != version:
        sys.exit(f"CHANGELOG.md begins with {newest}, and the version is {version}")
    if "unreleased" in newest:
        print(f"CHANGELOG.md: {version} is unreleased: add a date before you upload", file=sys.stderr)
    return str(version)


def _urls(repository: str, version: str) -> str:
    return f"""[project.urls]
Source = "{repository}"
Documentation = "{repository}/tree/v{version}/docs"
Changelog = "{repository}/blob/v{version}/CHANGELOG.md"
Issues = "{repository}/issues"
"""


if __name__ == "__main__":
    main()
