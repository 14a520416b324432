"""`recallflow schema`: the JSON Schemas of everything that crosses a topic, and all of it as one AsyncAPI document."""

import argparse

# All that crosses a topic; a test compares, as making the schemas takes long.
NAMES = (
    "audit",
    "control-event",
    "enrichment-request",
    "enrichment-result",
    "memory-event",
    "query-event",
    "receipt",
    "response",
)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "schema",
        help="print the JSON Schemas, or the AsyncAPI document",
        description="Prints the JSON Schemas of all records, one of them, or an AsyncAPI 3 document of all topics.",
        examples=("recallflow schema query-event", "recallflow schema asyncapi > asyncapi.json"),
    )
    parser.add_argument(
        "name", nargs="?", choices=[*NAMES, "asyncapi"], metavar="NAME", help="one of them (default: all JSON Schemas)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import orjson

    from recallflow.asyncapi import asyncapi
    from recallflow.schema import schemas

    match options.name:
        case None:
            shown = schemas()
        case "asyncapi":
            shown = asyncapi()
        case name:
            shown = schemas()[name]
    print(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    return 0
