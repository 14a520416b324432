"""Write the pictures: `python -m tools.pictures`."""

from pathlib import Path

from tools.pictures import PICTURES

FOLDER = Path(__file__).parents[2] / "docs" / "images"

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())
