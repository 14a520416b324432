"""A real schema registry with Confluent's protocol: Apicurio, from Maven Central (142 MB, fetched once).

python -m tools.registry [--port N]
"""

import argparse
import signal
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from tools.broker import HOST, free_ports, guard, java, program, release, retry, run, run_in_foreground

VERSION = "2.6.13.Final"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
START_S = 120.0


def assemble() -> Path:
    folder = Path.home() / ".cache" / "recallflow" / f"apicurio-{VERSION}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as scratch:
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
            run([program("mvn"), "-q", "-B", goal, f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={scratch}"])
            unpacked = Path(scratch) / "app"
            with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
                archive.extractall(unpacked, filter="data")
            unpacked.rename(folder)
    return folder


class Registry:
    """A registry that runs for the time of a block. Its schemas are in memory."""

    def __init__(self, port: int | None = None) -> None:
        (self._port,) = free_ports(port)
        self.url = f"http://{HOST}:{self._port}/apis/ccompat/v7"

    def start(self) -> None:
        jar = next(assemble().glob("*-runner.jar"))
        options = ["-Xmx512m", f"-Dquarkus.http.port={self._port}", f"-Dquarkus.http.host={HOST}"]
        self._process = subprocess.Popen(
            [java(), *options, "-jar", str(jar)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._guard = guard(self._process.pid)
        if not retry(self._answers, time.monotonic() + START_S):
            raise RuntimeError("the registry did not start")

    def wait(self) -> None:
        self._process.wait()

    def stop(self) -> None:
        release(self._guard)
        self._process.kill()
        self._process.wait()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let requests wait without a response."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
            return True
        return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.registry", description="Run a registry on loopback.")
    parser.add_argument("--port", type=int, help="port (default: a free port)")
    port = parser.parse_args().port

    def start(opened: ExitStack) -> tuple[Callable[[], object], dict[str, str]]:
        registry = opened.enter_context(Registry(port))
        return registry.wait, {"RECALLFLOW_KAFKA_LIBRDKAFKA_SCHEMA_REGISTRY_URL": registry.url}

    run_in_foreground(start)


if __name__ == "__main__":
    main()
