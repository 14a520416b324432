"""Measure whether the tests notice planted defects: `python -m tools.planted_defects`.

Each defect of `planted_defects.toml` is applied alone, in a git worktree of HEAD. Pytest then runs the test folder of
the defect's room, and the default group if that passes. A test that also fails without the defect does not count.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DEFECTS = Path(__file__).with_suffix(".toml")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:randomly")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
IMPORTED = "import recallflow, recallflow.operators.step as step; print(recallflow.__file__, step.__file__)"
PASSED = (0, 5)  # 5: no test was collected


class Defect(NamedTuple):
    """A planted defect; `old` occurs exactly once in `file`, and `effect` is the consequence for a user."""

    id: str
    room: str
    file: str
    old: str
    new: str
    effect: str
    older: bool = False

    def mutate(self, text: str) -> str:
        """Return the file's text with the defect. Raise SystemExit if `old` is not unique, or the result invalid."""
        if (count := text.count(self.old)) != 1:
            raise SystemExit(f"{self.id}: `old` occurs {count} times in {self.file}, not once; update it")
        try:
            compile(mutated := text.replace(self.old, self.new), self.file, "exec")
        except SyntaxError as error:
            raise SystemExit(f"{self.id}: {self.file} does not compile with the defect: {error}") from None
        return mutated


class Copy:
    """A worktree in which tests run with and without a defect."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unsound: set[str] = set()  # tests that fail without any defect
        shared = os.environ.get("RECALLFLOW_SHARED", str(ROOT.parent / "shared"))
        self._environment = os.environ | {"PYTHONPATH": str(folder), "RECALLFLOW_SHARED": shared}
        imported = self._run(sys.executable, "-c", IMPORTED).stdout.split()
        if len(imported) != 2 or not all(Path(one).is_relative_to(folder) for one in imported):
            raise SystemExit(f"the copy does not import its own modules, but {imported}")

    def find_failure(self, defect: Defect, *arguments: str) -> str | None:
        """Return the first test that fails with the defect and passes without it; None if there is none."""
        original = (file := self.folder / defect.file).read_text()
        while True:
            try:
                file.write_text(defect.mutate(original))
                run = self._run(*PYTEST, *arguments, *(f"--deselect={one}" for one in sorted(self.unsound)))
            finally:
                file.write_text(original)
            if run.returncode in PASSED:
                return None
            if (found := FAILED.search(run.stdout)) is None:
                raise SystemExit(f"{defect.id}: pytest ended with {run.returncode}:\n{run.stdout[-2_000:]}")
            if self._run(*PYTEST, "-n0", found[1]).returncode in PASSED or found[1] in self.unsound:
                return found[1]
            self.unsound.add(found[1])

    def _run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, cwd=self.folder, env=self._environment, capture_output=True, text=True)


def mirrored_folder(unit: Path, room: str) -> Path:
    """Return the unit test folder of a room, or the nearest folder above it."""
    return next(one for one in (unit / room, *(unit / room).parents) if one.is_dir())


def main() -> int:
    """Run the command; return 1 if a defect was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tools.planted_defects", description="Plant defects and run tests.")
    parser.add_argument("--only", action="append", metavar="ID", help="only this defect; may be given several times")
    parser.add_argument("--full", action="store_true", help="run pytest --full if the default group notices nothing")
    parser.add_argument("--group-only", action="store_true", help="run only the test folder of the defect's room")
    parser.add_argument("--check", action="store_true", help="only check that each defect applies and compiles")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to this file")
    options = parser.parse_args()
    every = [Defect(**one) for one in tomllib.loads(DEFECTS.read_text())["defect"]]
    chosen = [one for one in every if not options.only or one.id in options.only]
    if unknown := {*(options.only or ())} - {one.id for one in chosen}:
        raise SystemExit(f"unknown defects: {', '.join(sorted(unknown))}")
    for one in chosen:
        one.mutate((ROOT / one.file).read_text())
    print(f"{len(chosen)} defects apply and compile")
    if options.check:
        return 0
    outcomes = list[dict[str, object]]()
    with tempfile.TemporaryDirectory(prefix="planted-defects-") as scratch:
        folder = Path(scratch).resolve() / "copy"
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", str(folder), "HEAD"], check=True)
        try:
            copy = Copy(folder)
            for one in chosen:
                began_s = time.monotonic()
                runs = [["-n0", str(mirrored_folder(folder / "tests/unit", one.room).relative_to(folder))]]
                runs += [] if options.group_only else [["-n2"], ["-n2", "--full"]][: 1 + options.full]
                test = next((found for run in runs if (found := copy.find_failure(one, *run))), None)
                outcomes.append({"id": one.id, "test": test, "seconds": round(time.monotonic() - began_s, 1)})
                noticed = f"noticed by {test}" if test else "NOT NOTICED"
                print(f"{one.id}: {noticed}, {outcomes[-1]['seconds']} s", flush=True)
                if options.json:
                    options.json.write_text(json.dumps(outcomes, indent=2) + "\n")
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(folder)], check=True)
    print(*(f"not counted, as it fails without a defect: {test}" for test in sorted(copy.unsound)), sep="\n")
    print(f"{(count := sum(one['test'] is not None for one in outcomes))} of {len(outcomes)} noticed")
    return int(count < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
