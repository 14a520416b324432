"""Answers as of two ingestion times."""

from tools.pictures.canvas import Canvas

DESCRIPTION = (
    "A timeline. On 5 October a message says that Maya lives in Leeds, and on 17 January that she lives in Bristol. As "
    "of 1 December the answer is Leeds, today it is Bristol."
)
OCTOBER, DECEMBER, JANUARY, TODAY = 120, 330, 500, 660


def draw() -> str:
    canvas = Canvas(760, 300, DESCRIPTION)
    canvas.text(20, 32, "Points in time", "strong")
    canvas.arrow((30, 190), (740, 190))
    for place, name in ((OCTOBER, "5 October"), (DECEMBER, "1 December"), (JANUARY, "17 January"), (TODAY, "today")):
        canvas.line((place, 184), (place, 196))
        canvas.text(place, 214, name, "small", "middle")
    canvas.bar(OCTOBER, 70, JANUARY - OCTOBER, 30, "a")
    canvas.bar(JANUARY, 120, TODAY - JANUARY + 60, 30, "b")
    canvas.text(OCTOBER, 62, "Maya lives in Leeds: ingested on 5 October, valid until it is superseded", "small")
    canvas.text(JANUARY, 112, "Maya lives in Bristol: ingested on 17 January", "small")
    for place, asked, answer in (
        (DECEMBER, 'as_of.ingestion_time = "2025-12-01"', "Leeds"),
        (TODAY, "no as_of", "Bristol"),
    ):
        canvas.arrow((place, 250), (place, 222))
        canvas.text(place, 266, asked, "code", "middle")
        canvas.text(place, 284, answer, "strong", "middle")
    return canvas.svg()
