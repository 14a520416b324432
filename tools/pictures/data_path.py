"""The path of a record from a topic to a response."""

from tools.pictures.canvas import Canvas

DESCRIPTION = (
    "Memory events, queries and control events are read from Kafka, pass decode, authorise and prepare in one stream, "
    "and reach the state partition of their user. Responses, receipts and dead letters are written to Kafka. Data and "
    "position are one write to RocksDB."
)
INPUTS = (("memory.events", "memories"), ("query.events", "queries"), ("control.events", "decisions"))
STEPS = (("decode", "bytes to events"), ("authorise", "credentials"), ("prepare", "words, vectors"))
OUTPUTS = (("recall.responses", "responses"), ("memory.receipts", "outcomes"), ("dead.letters", "refused records"))


def draw() -> str:
    canvas = Canvas(930, 360, DESCRIPTION)
    for number, (name, label) in enumerate(INPUTS):
        canvas.box(20, 40 + 70 * number, 150, 50, name, label)
        canvas.line((170, 65 + 70 * number), (190, 65 + 70 * number))
    canvas.line((190, 65), (190, 205))
    canvas.arrow((190, 135), (215, 135))
    for number, (name, label) in enumerate(STEPS):
        canvas.box(215 + 130 * number, 110, 110, 50, name, label)
        canvas.arrow((325 + 130 * number, 135), (345 + 130 * number, 135))
    canvas.box(605, 30, 120, 220, kind="group")
    canvas.text(665, 50, "state partition", "small", "middle")
    for number, name in enumerate(("episodes", "memories", "recall")):
        canvas.box(615, 62 + 62 * number, 100, 46, name)
    canvas.line((725, 135), (740, 135))
    canvas.line((740, 65), (740, 205))
    for number, (name, label) in enumerate(OUTPUTS):
        canvas.arrow((740, 65 + 70 * number), (755, 65 + 70 * number))
        canvas.box(755, 40 + 70 * number, 155, 50, name, label)
    canvas.arrow((665, 250), (665, 285))
    canvas.box(535, 285, 260, 50, "RocksDB", "data and position in one write")
    canvas.text(20, 305, "One stream in log order: a query sees all earlier events of its user.", "small")
    canvas.text(20, 323, "A killed process continues after the last committed position.", "small")
    return canvas.svg()
