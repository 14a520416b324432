"""Commands on records of the topics: `recallflow tail` and `dlq`."""

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import orjson
from rich.text import Text

from recallflow.cli.flags import add_actions, add_kafka, config, whole
from recallflow.cli.memories import DIM, WHEN, WHO, one_line
from recallflow.cli.output import console, json_line, note, paragraph
from recallflow.cli.parser import Commands, add_command
from recallflow.cloud_events import response_json
from recallflow.credentials import mask
from recallflow.errors import ErrorCode, UsageError
from recallflow.fields import parse_time

if TYPE_CHECKING:
    from recallflow.connectors.kafka.messages import Letter
    from recallflow.connectors.kafka.topic_reader import TopicReader

# Topic that `tail` prints → label and colour of its records, and whether it is an input of the engine.
FOLLOWED = {
    "memory": ("event", "green", True), "queries": ("query", "blue", True), "responses": ("answer", "magenta", False),
    "receipts": ("receipt", "green", False), "dead_letters": ("refused", "bold red", False),
}  # fmt: skip
WAIT_S = 0.5  # limit of one read
SHOWN_CHARACTERS = 200
CODES = get_args(ErrorCode)
DENIED = ("unauthenticated", "forbidden")  # refusals because of the sender


def line_of(message: Any, name: str) -> Text:
    """Return time, direction, kind, owner and summary of a record."""
    from recallflow.connectors.kafka.messages import time_ms

    when = time.strftime("%H:%M:%S", time.localtime(time_ms(message) / 1_000))
    label, style, is_input = FOLLOWED[name]
    key = one_line((message.key() or b"").decode(errors="replace"))
    beginning = (when, WHEN), " → " if is_input else " ← ", (f"{label:<8}", style), (key, WHO), " "
    position = f"  {message.topic()}:{message.partition()}:{message.offset()}"
    return Text.assemble(*beginning, one_line(_summary(name, _parsed(message), message)), (position, DIM))


def record_of(message: Any) -> dict[str, Any]:
    """Return a record as JSON fields: position, time, key and content. Content that is not JSON becomes text."""
    from recallflow.connectors.kafka.messages import Letter

    letter = Letter.of(message)
    fields = {
        "position": f"{message.topic()}:{message.partition()}:{message.offset()}",
        "timestamp_ms": message.timestamp()[1], "key": (message.key() or b"").decode(errors="replace"),
        "record": _parsed(message),
    }  # fmt: skip
    return fields if letter is None else fields | {"error": letter.error}


def _parsed(message: Any) -> Any:
    """Return the content of a record: JSON, else text; None for a tombstone."""
    from recallflow.connectors.kafka.messages import identity_of, json_or_wire

    if message.value() is None:
        return None
    value = response_json(message.value()) if identity_of(message) else json_or_wire(message)
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value.decode(errors="replace")


def _summary(name: str, record: Any, message: Any) -> str:
    if name == "dead_letters":
        from recallflow.connectors.kafka.messages import REPLAYED_HEADER, Letter, headers_of

        if (letter := Letter.of(message)) is not None:
            return f"{letter.error.get('code')}: {letter.error['detail']}"
        return "replayed" if REPLAYED_HEADER in dict(headers_of(message) or ()) else "not written by an engine"
    if not isinstance(record, dict):
        return "(a tombstone)" if record is None else str(record)
    match name:
        case "memory" | "queries":
            names = ("content", "query", "memory_id", "filter")
            content = next((record[field] for field in names if record.get(field)), "")
            return f"{record.get('type')} {content if isinstance(content, str) else orjson.dumps(content).decode()}"
        case "receipts":
            return f"{record.get('outcome')} {record.get('memory_id') or record.get('id')}"
    return _response_summary(record)


def _response_summary(response: dict[str, Any]) -> str:
    """Summarise a response. Topics may hold arbitrary records: an invalid response is shown as far as possible."""
    error, took, memories = (response.get(name) for name in ("error", "processing_time_ms", "memories"))
    parts, content = [str(response.get("status"))], error.get("message") if isinstance(error, dict) else None
    if isinstance(memories, list):
        parts.append(f"{len(memories)} memories")
        content = memories[0].get("content") if memories and isinstance(memories[0], dict) else content
    if isinstance(took, int | float):
        parts.append(f"{took:.1f} ms")
    return ", ".join(parts) + (f": {content}" if content else "")


def add_tail(commands: Commands) -> None:
    parser = add_command(commands, "tail", run_tail)
    parser.add_argument("--tenant", metavar="ID", help="only records of this tenant (default: all)")
    parser.add_argument("--user", metavar="ID", help="only records of this user; needs --tenant")
    names = [name.replace("_", "-") for name in FOLLOWED]
    text = f"{', '.join(names)}; may be repeated"
    parser.add_argument("--only", action="append", choices=names, metavar="WHAT", help=text)
    text = "first record (default: now)"
    parser.add_argument("--from", dest="begin", choices=("beginning", "now"), default="now", help=text)
    parser.add_argument("--count", type=whole, metavar="N", help="end after this number of records")
    parser.add_argument("--json", action="store_true", help="print one JSON record per line")
    add_kafka(parser, *(f"topics.{name}" for name in FOLLOWED))


def run_tail(options: argparse.Namespace) -> None:
    """Print records of the topics as they arrive.
    Memory events and queries are input; responses, receipts and dead letters are output. Ctrl-C ends it.
    $ recallflow tail --from beginning --count 2 --bootstrap-servers localhost:9092"""
    if options.user is not None and options.tenant is None:
        raise UsageError("--user needs --tenant, because users of two tenants may have the same name")
    from recallflow.connectors.kafka.topic_reader import UNCOMMITTED, TopicReader

    chosen = config(options)
    with suppress(KeyboardInterrupt), TopicReader(chosen.kafka, UNCOMMITTED, decodes=True) as reader:
        names = {getattr(chosen.topics, name): name for name in FOLLOWED}
        only = {name.replace("-", "_") for name in options.only or FOLLOWED}
        for message in _messages(reader, [topic for topic, name in names.items() if name in only], options):
            if options.json:
                json_line(record_of(message))
            else:
                console().print(line_of(message, names[message.topic()]), no_wrap=True, overflow="ellipsis")


def _messages(reader: "TopicReader", topics: Sequence[str], options: argparse.Namespace) -> Iterator[Any]:
    """Yield records that match the options as they arrive. Records of one partition are in order."""
    for (topic, number), (begin, end) in reader.spans(topics).items():
        reader.add(topic, number, begin if options.begin == "beginning" else end)
    owner = f"{options.tenant}/{options.user or ''}".encode()
    count = 0
    while options.count is None or count < options.count:
        if (message := reader.read(WAIT_S)) is None:
            continue
        key = message.key() or b""
        if options.tenant is None or (key == owner if options.user is not None else key.startswith(owner)):
            count += 1
            yield message


def add_dlq(commands: Commands) -> None:
    actions = add_actions(commands, "dlq", "list dead letters, and send them again")
    listing = add_command(actions, "list", run_dlq_list)
    listing.add_argument("--json", action="store_true", help="print one JSON object per line")
    replay = add_command(actions, "replay", run_dlq_replay)
    replay.add_argument("--dry-run", action="store_true", help="print what would be sent, without sending")
    for action in (listing, replay):
        text = f"only those refused for this reason: {', '.join(CODES)}"
        action.add_argument("--code", metavar="CODE", choices=CODES, help=text)
        action.add_argument("--since", type=_time, metavar="TIME", help="only those refused at this time or later")
        action.add_argument("--until", type=_time, metavar="TIME", help="only those refused before this time")
        add_kafka(action, "topics.dead_letters", *(("topics.memory", "topics.queries") if action is replay else ()))


def _time(text: str) -> int:
    try:
        return parse_time(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def run_dlq_list(options: argparse.Namespace) -> None:
    """List refused records and the reasons.
    $ recallflow dlq list --bootstrap-servers localhost:9092
    $ recallflow dlq list --code invalid_event --json --bootstrap-servers localhost:9092"""
    from recallflow.connectors.kafka.topic_reader import read_letters

    count = 0
    chosen = config(options)
    for letter in read_letters(chosen.kafka, chosen.topics.dead_letters):
        if not _is_selected(letter, options):
            continue
        count += 1
        # Earlier versions stored dead letters unmasked.
        text = None if letter.value is None else mask(letter.value)[0].decode(errors="replace")
        headers = [(name, mask(value or b"")[0].decode(errors="replace")) for name, value in letter.headers]
        if options.json:
            json_line({"position": str(letter.position), "error": letter.error, "headers": headers, "record": text})
        else:
            error = letter.error
            print(paragraph(f"{error['source']} {error['code']}: {error['detail']}"))
            print(paragraph("(no value: a tombstone)" if text is None else text[:SHOWN_CHARACTERS], "    "))
            if headers:
                print(paragraph(f"headers: {', '.join(map('='.join, headers))}"[:SHOWN_CHARACTERS], "    "))
            for missing in letter.missing:
                print(paragraph(f"({missing})", "    "))
    if not options.json:
        print(f"{count} dead letters")


def run_dlq_replay(options: argparse.Namespace) -> int:
    """Send refused records again, unchanged, each once.
    They go to their topics, with auth.api_key if it is set. Later replays omit records that were sent. Cut and masked
    records are read from their topic; those that it has lost are omitted, with exit code 1. So are records that were
    refused as unauthenticated or forbidden, unless --code names that reason: they would be sent with your credentials.
    $ recallflow dlq replay --code internal_error --dry-run --bootstrap-servers localhost:9092
    $ recallflow dlq replay --code internal_error --since 2026-03-01T08:00Z --bootstrap-servers localhost:9092"""
    from recallflow.connectors.kafka.sender import DeadLetterReplay
    from recallflow.connectors.kafka.topic_reader import letters_to_replay, with_originals

    chosen = config(options)
    kafka, topics = chosen.kafka, chosen.topics
    # This aborts the open transaction of an earlier replay, so that its markers can be read afterwards.
    replay = None if options.dry_run else DeadLetterReplay(kafka, topics.dead_letters)
    every = letters_to_replay(kafka, topics.dead_letters)
    letters = with_originals(kafka, [letter for letter in every if _is_selected(letter, options)])
    incomplete = [letter for letter in letters if letter.missing]
    for letter in incomplete:
        note(f"{letter.source} cannot be sent again: {'; '.join(letter.missing)}")
    denied = [letter for letter in letters if options.code is None and letter.error.get("code") in DENIED]
    if denied:
        remedy = f"check them, and give --code {' or '.join(DENIED)} to send them"
        note(f"{len(denied)} not sent, because their senders were refused; {remedy}")
    sendable = [letter for letter in letters if not letter.missing and letter not in denied]
    if replay is None:
        for letter in sendable:
            print(paragraph(f"{letter.source} {letter.error['code']}: {letter.error['detail']}"))
        print(f"{len(sendable)} would be sent again")
    else:
        sent = replay.send_again(sendable, chosen.auth.credentials, (topics.memory, topics.queries))
        rest = f"; {len(incomplete)} not sent, because they are incomplete" if incomplete else ""
        print(f"{sent} sent again{rest}")
    return 1 if incomplete or denied else 0


def _is_selected(letter: "Letter", options: argparse.Namespace) -> bool:
    after = options.since is None or letter.refused_ms >= options.since
    before = options.until is None or letter.refused_ms < options.until
    return options.code in (None, letter.error.get("code")) and after and before
