"""`make release REPOSITORY=https://…`: both distributions out of the last commit, as PyPI takes and shows them.

`REPOSITORY` is where the source stands for readers: PyPI's page has no files beside it, so the README's links and
pictures have to say where theirs are."""

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = (".", "packages/client", "packages/embedded")
_RELATIVE = r"(?!#|[a-z][a-z0-9+.-]*:)"  # neither a place on the page nor an address
_LINK = re.compile(rf"(!?)(\[[^\]]*\])\({_RELATIVE}([^)\s]+)\)")
_ATTRIBUTE = re.compile(rf'\b(href|src|srcset)="{_RELATIVE}([^"\s]+)"')


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--repository", required=True, metavar="URL", help="where the source stands for readers")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archives (default: dist)")
    options = parser.parse_args(arguments)
    if any(options.out.glob("recallflow*")):
        parser.error(f"{options.out} has archives of before: remove them")
    for path in build(options.repository.rstrip("/"), options.out):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)


def build(repository: str, out: Path) -> list[Path]:
    """Builds and checks a wheel and a source archive of each distribution."""
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


def absolute(readme: str, repository: str, tag: str) -> str:
    """A README whose links and pictures name the repository's files of a tag."""

    def place(path: str, *, picture: bool) -> str:
        return f"{repository}/{'raw' if picture else 'blob'}/{tag}/{path}"

    linked = _LINK.sub(lambda m: f"{m[1]}{m[2]}({place(m[3], picture=m[1] == '!')})", readme)
    return _ATTRIBUTE.sub(lambda m: f'{m[1]}="{place(m[2], picture=m[1] != "href")}"', linked)


def _version(tree: Path) -> str:
    """The version of a tree, which has to be the changelog's newest."""
    (version,) = re.findall(r'^__version__ = "(.+)"$', (tree / "recallflow" / "version.py").read_text(), re.MULTILINE)
    newest = re.findall(r"^## (.+)$", (tree / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    if newest.split()[0] != version:
        sys.exit(f"CHANGELOG.md begins with {newest}, and the version is {version}")
    if "unreleased" in newest:
        print(f"CHANGELOG.md says of {version} that it is unreleased: date it before you upload", file=sys.stderr)
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
