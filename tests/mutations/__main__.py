"""Send what nobody should send, and look for what must not come of it.

    python -m tests.mutations [--count 200000] [--seed N] [--json FILE]

Events, headers and tokens are drawn from a seed, most of them with something wrong, of tenants whose
names look alike, and go through decoding, the verdict on their sender, and the state. Looked for: an exception; a
refusal without a reason; a record that counts without credentials that cover it, or is refused with such; memories of
one owner in the answer to another; anything stored of a tenant that is not what it is where that tenant sends alone; a
credential in what is sent out, logged or kept.
"""

import argparse
import random
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import orjson

from tests.mutations.trial import Report, Trial


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}")
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Trial(Path(folder), chosen.seed, chosen.count).run()
    show(report)
    print(f"{time.monotonic() - began_s:,.0f} s")
    if chosen.json:
        chosen.json.write_bytes(orjson.dumps({"seed": chosen.seed, **asdict(report)}, option=orjson.OPT_INDENT_2))
    if report.found:
        raise SystemExit(1)


def show(report: Report) -> None:
    print(f"{report.records:,} records; {report.accepted.total():,} count, {report.refused.total():,} refused")
    for name in ("accepted", "refused", "outputs"):
        counted = getattr(report, name).most_common()
        print(f"  {name}: {', '.join(f'{kind} {count:,}' for kind, count in counted)}")
    print(f"  owners stored: {report.owners}")
    print(f"found: {report.found.total():,}")
    for example in report.examples:
        print(f"  {example}")


if __name__ == "__main__":
    main()
