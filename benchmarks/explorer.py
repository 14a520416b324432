"""How soon the explorer shows 5,000 nodes, and whether it stays fluid.

    python -m benchmarks.explorer

`recallflow serve` over a state directory, and Chromium without a window, which draws in software. Printed: until the
first picture is asked for, and until all is loaded; then, while the picture is dragged and zoomed, how long frames of
the page take, and tasks of over 50 ms that held it up.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import orjson
from playwright.sync_api import Page, sync_playwright

from benchmarks.large_graph import OWNER, large_graph
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

NODES = 5_000
ROUNDS = 5
_WATCH = """
sessionStorage.setItem("recallflow.explorer", JSON.stringify(%s));
window.tasks = [];
new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)))
  .observe({ type: "longtask" });
new MutationObserver(() => { if (document.getElementById("count")?.textContent) window.first ??= performance.now(); })
  .observe(document, { subtree: true, childList: true });
"""
_FRAMES = """
() => {
  window.frames_ms = [];
  window.tasks = [];
  let last;
  const on = (now) => { if (last) frames_ms.push(now - last); last = now; requestAnimationFrame(on); };
  requestAnimationFrame(on);
}
"""


@contextmanager
def serving(state_dir: Path) -> Iterator[str]:
    """The address of a gateway over a state directory."""
    command = [
        str(Path(sys.executable).with_name("recallflow")),
        "serve",
        "--create",
        "--state-dir",
        str(state_dir),
        "--partitions",
        "1",
    ]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE) as process_:
        assert process_.stderr is not None
        try:
            yield next(
                found[1].decode() for line in process_.stderr if (found := re.search(rb"serving at (\S+)", line))
            )
        finally:
            process_.terminate()


def measure(page: Page, url: str) -> dict[str, float]:
    """Opens the explorer, and moves its picture."""
    page.add_init_script(_WATCH % orjson.dumps({"tenant": OWNER["tenant_id"], "user": OWNER["user_id"]}).decode())
    page.goto(f"{url}/explore")
    page.locator("html[data-loaded]").wait_for(state="attached")
    found = {"first_ms": page.evaluate("first"), "all_ms": page.evaluate("performance.now()")}
    page.evaluate(_FRAMES)
    page.mouse.move(600, 400)
    page.mouse.down()
    for step in range(100):
        page.mouse.move(600 + 2 * step, 400 + step)
    page.mouse.up()
    for _ in range(30):
        page.mouse.wheel(0, -60)
    frames, tasks = sorted(page.evaluate("frames_ms")), page.evaluate("tasks")
    return found | {
        "frame_p50_ms": median(frames),
        "frame_max_ms": frames[-1],
        "longest_task_ms": max(tasks, default=0),
    }


def main() -> None:
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        state_dir = Path(folder) / "state"
        process([orjson.dumps(event) for event in large_graph(NODES)], Settings(partitions=1), state_dir)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        with serving(state_dir) as url:
            rounds = [measure(browser.new_page(viewport={"width": 1280, "height": 800}), url) for _ in range(ROUNDS)]
        browser.close()
    for name in rounds[0]:
        values = sorted(one[name] for one in rounds)
        print(f"{name:16} median {median(values):8.1f}   {values[0]:8.1f} to {values[-1]:8.1f}")


if __name__ == "__main__":
    main()
