"""A year of a chat between a person and an assistant, as JSON lines of OpenAI messages, the same each time.

python write_year.py > year.jsonl
"""

import json
import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2025, 1, 1, 8, tzinfo=UTC)
CITIES = {1: "Leeds", 4: "Porto", 9: "Ghent"}  # by the month of the move
SMALL_TALK = (
    "The tram was late again.",
    "I had soup for lunch.",
    "Can you convert 12 inches to centimetres?",
    "It rained all day.",
    "I finished another chapter of my book.",
)


def main() -> None:
    chance = random.Random(7)
    for day in range(365):
        date = BEGIN + timedelta(days=day)
        said = chance.choice(SMALL_TALK)
        if date.day == 1 and date.month in CITIES:
            said = f"I live in {CITIES[date.month]} now."
        turns = [("user", said), ("assistant", "Noted.")]
        messages = [
            {"role": role, "content": content, "created": int((date + timedelta(minutes=place)).timestamp())}
            for place, (role, content) in enumerate(turns)
        ]
        print(json.dumps({"conversation_id": f"{date:%Y-%m-%d}", "user_id": "kim", "messages": messages}))


if __name__ == "__main__":
    main()
