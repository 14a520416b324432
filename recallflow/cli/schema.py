"""`recallflow schema`: the JSON Schemas of everything that crosses a topic."""

import argparse

import orjson

from recallflow.schema import schemas


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("schema", help="print the JSON Schemas", description="Prints the JSON Schemas.")
    parser.add_argument("name", nargs="?", choices=sorted(schemas()), help="one of them (default: all)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    every = schemas()
    shown = every if options.name is None else every[options.name]
    print(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())
    return 0
