"""What was known at the end of each month that a question is asked about.

python ask_then.py year 2025-03-31 2025-06-30 2025-12-31
"""

import sys

from recallflow import Memory


def main() -> None:
    folder, *days = sys.argv[1:]
    with Memory(folder) as memory:
        for day in days:
            moment = {"event_time": f"{day}T23:59:59Z"}
            found = memory.search("Which city do I live in now?", user="kim", k=1, as_of=moment)
            print(f"{day}: {found[0].content if found else 'nothing'}")


if __name__ == "__main__":
    main()
