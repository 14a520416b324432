"""Two episodes of one session."""

from tools.pictures.canvas import Canvas

DESCRIPTION = (
    "Seven messages of one session on a timeline. The first four, minutes apart, are one episode. After a gap of more "
    "than 30 minutes, the next three are another episode."
)
FIRST, SECOND = (70, 110, 170, 215), (560, 610, 675)  # positions of the messages


def draw() -> str:
    canvas = Canvas(760, 230, DESCRIPTION)
    canvas.text(20, 32, "One session", "strong")
    canvas.arrow((30, 130), (735, 130))
    canvas.text(740, 185, "event time", "small", "end")
    for places, name in ((FIRST, "episode 1"), (SECOND, "episode 2")):
        canvas.box(places[0] - 25, 80, places[-1] - places[0] + 50, 90, kind="group")
        canvas.text(places[0] - 25, 70, name, "strong")
        for number, place in enumerate(places):
            canvas.dot(place, 130, "ab"[number % 2])
    canvas.line((245, 118), (530, 118))
    canvas.line((245, 112), (245, 124))
    canvas.line((530, 112), (530, 124))
    canvas.text(388, 108, "more than 30 minutes without a message", "small", "middle")
    canvas.dot(30, 205, "a")
    canvas.text(42, 210, "Ann", "small")
    canvas.dot(90, 205, "b")
    canvas.text(102, 210, "the assistant", "small")
    canvas.text(735, 210, "episode.end closes an episode; a late message joins the episode at its time", "small", "end")
    return canvas.svg()
