"""`recallflow schema`: the JSON Schemas of everything that crosses a topic, and all of it as one AsyncAPI document."""

import argparse

import orjson

from recallflow.asyncapi import asyncapi
from recallflow.schema import schemas


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "schema",
        help="print the JSON Schemas, or the AsyncAPI document",
        description="Prints the JSON Schemas of all records, one of them, or an AsyncAPI 3 document of all topics.",
    )
    parser.add_argument("name", nargs="?", choices=[*sorted(schemas()), "asyncapi"], help="default: all JSON Schemas")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    match options.name:
        case None:
            shown = schemas()
        case "asyncapi":
            shown = asyncapi()
        case name:
            shown = schemas()[name]
    print(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    return 0
