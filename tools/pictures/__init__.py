"""Pictures of docs/concepts/overview.md: `python -m tools.pictures` writes them."""

from collections.abc import Callable, Mapping

from tools.pictures import data_path, episode, moment, score

# File in docs/images → function that draws it.
PICTURES: Mapping[str, Callable[[], str]] = {
    "data-path.svg": data_path.draw,
    "episode.svg": episode.draw,
    "score.svg": score.draw,
    "moment.svg": moment.draw,
}
