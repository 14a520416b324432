"""Commands for other programs: `recallflow serve`, `mcp`, `pipe`, `schema` and `completion`."""

import argparse
import io
import logging
import os
import sys
from itertools import count
from typing import TYPE_CHECKING, cast

from recallflow.cli import flags
from recallflow.cli.kafka import run_until_renewed, run_until_stopped
from recallflow.cli.output import note
from recallflow.cli.parser import Commands, add_command
from recallflow.errors import UsageError
from recallflow.limits import RECORD_BYTES

if TYPE_CHECKING:
    from recallflow.connectors.local_inputs import Delivered
    from recallflow.flows.config import Config

# Names of all schemas. A test compares them with the models, because building the schemas is slow.
SCHEMAS = (*("audit", "control-event", "enrichment-request", "enrichment-result", "memory-event", "query-event"),
           *("receipt", "response"))  # fmt: skip
DOCUMENTS = ("asyncapi", "openapi")
SHELLS = {
    "bash": 'add to ~/.bashrc: eval "$(recallflow completion bash)"',
    "zsh": 'add to ~/.zshrc, after compinit: eval "$(recallflow completion zsh)"',
    "fish": "recallflow completion fish > ~/.config/fish/completions/recallflow.fish",
}
STDIN_TOPIC = "stdin"


def add_serve(commands: Commands) -> None:
    parser = add_command(commands, "serve", run_serve)
    flags.add_kafka(parser, *flags.SERVE, *flags.GATEWAY)
    flags.add_control(parser)
    flags.add_start(parser)


def run_serve(options: argparse.Namespace) -> int:
    """Run the HTTP gateway for questions and events.
    The engine is on Kafka, or with --state-dir in this process on that directory. SIGTERM ends it.
    $ recallflow serve --state-dir memory
    $ recallflow serve --bootstrap-servers localhost:9092 --port 8081"""

    def run(config: "Config") -> None:
        from recallflow.flows import gateway  # needs an extra

        if options.state_dir is not None:
            gateway.serve_local(config, flags.decisions(options), options.control)
        else:
            flags.check_no_control(options)
            run_until_renewed(config.kafka, lambda: gateway.serve_kafka(config))

    return run_until_stopped(options, run)


def add_mcp(commands: Commands) -> None:
    parser = add_command(commands, "mcp", run_mcp)
    parser.add_argument("--http", metavar="HOST:PORT", help="serve streamable HTTP at /mcp, instead of standard input")
    flags.add_owner(parser)
    parser.set_defaults(user=None)  # over HTTP each request names its user
    parser.add_argument("--project", metavar="NAME", help="use this project's memories only; new ones belong to it")
    flags.add_kafka(parser, *flags.GATEWAY)
    flags.add_control(parser)
    flags.add_start(parser)


def run_mcp(options: argparse.Namespace) -> int:
    """Run an MCP server: memory as tools for language models.
    Serves search_memory, add_memory, forget_memory and list_episodes on standard input and output, for one user, or
    over HTTP, where each request names its user in x-end-user-id. Asks the engine over Kafka; with --state-dir the
    engine is in this process. Credentials: auth.api_key, or those of each HTTP request.
    $ recallflow mcp --state-dir memory
    $ recallflow mcp --bootstrap-servers localhost:9092 --http 127.0.0.1:8765"""

    def run(config: "Config") -> None:
        from recallflow.connectors.mcp.tools import ServerScope
        from recallflow.flows import gateway, mcp  # need extras

        if options.http and options.user:
            raise UsageError("--user is not for HTTP, where each request names its user in x-end-user-id; leave it out")
        if options.state_dir is None:
            flags.check_no_control(options)
        address = mcp.parse_address(options.http) if options.http else None
        server_scope = ServerScope(options.tenant, options.environment, options.project)
        open_engine = gateway.embedded if options.state_dir else gateway.behind_kafka

        def serve() -> None:
            with open_engine(config, flags.decisions(options)) as engine:
                if address is None:
                    mcp.serve_user(config, engine, server_scope, options.user or "user")
                else:
                    mcp.serve_http(config, engine, server_scope, address)

        if address is None or options.state_dir is not None:  # a client on standard input would not restart a server
            serve()
        else:
            run_until_renewed(config.kafka, serve)

    return run_until_stopped(options, run)


def add_schema(commands: Commands) -> None:
    parser = add_command(commands, "schema", run_schema)
    text = "schema to print (default: all JSON Schemas)"
    parser.add_argument("name", nargs="?", choices=[*SCHEMAS, *DOCUMENTS], metavar="NAME", help=text)


def run_schema(options: argparse.Namespace) -> None:
    """Print the JSON Schemas, or the AsyncAPI or OpenAPI document.
    JSON Schemas are of all records or of one. AsyncAPI 3 describes all topics, OpenAPI 3.1 the HTTP gateway.
    $ recallflow schema query-event
    $ recallflow schema asyncapi > asyncapi.json
    $ recallflow schema openapi > openapi.json"""
    import orjson

    if options.name == "openapi":
        from recallflow.connectors.http.app import openapi as build
    else:
        from recallflow.schema import asyncapi, schemas

        build = asyncapi if options.name == "asyncapi" else schemas
    document = build()
    chosen = document[options.name] if options.name in SCHEMAS else document
    print(orjson.dumps(chosen, option=orjson.OPT_INDENT_2).decode())


def add_completion(commands: Commands) -> None:
    installation = "\n".join(f"{shell}: {text}" for shell, text in SHELLS.items())
    text = f"Prints a completion script for commands, options and files.\n{installation}"
    examples = ('eval "$(recallflow completion bash)"', "recallflow completion fish | head -3")
    help_text = "print a shell completion script"
    parser = commands.add_parser("completion", help=help_text, description=text, examples=examples)
    parser.add_argument("shell", choices=[*SHELLS])
    parser.set_defaults(run=run_completion)


def print_shell_completions(parser: argparse.ArgumentParser) -> None:
    """Print completions and end the process, if a shell asks for them."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser, always_complete_options="long")


def run_completion(options: argparse.Namespace) -> None:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["recallflow"], shell=options.shell))


def add_pipe(commands: Commands) -> None:
    parser = add_command(commands, "pipe", run_pipe)
    parser.add_argument("--receipts", action="store_true", help="also print requested receipts, in order")
    flags.add_settings(parser, *flags.ENGINE, *flags.QUERIES)
    flags.add_control(parser)
    flags.add_create(parser)


def run_pipe(options: argparse.Namespace) -> None:
    """Read events from stdin, write responses to stdout.
    Applies one event per stdin line, strictly in order. Each query line gives exactly one response line on stdout, in
    query order; refused lines go to stderr as JSON {line, error}.
    $ recallflow pipe --state-dir memory < conversations.jsonl
    $ recallflow pipe --state-dir new --create --receipts < conversations.jsonl"""
    import orjson

    from recallflow.connectors.local_inputs import batches_of_lines, read_ahead
    from recallflow.flows.embedded import EmbeddedEngine, rejection, run_lines
    from recallflow.outputs import Answer, DeadLetter

    logging.disable(logging.WARNING)  # scripts parse stderr: only refused lines, or the final error
    chosen = flags.config(options)
    if (warning := chosen.enrichment.unavailable_warning()) is not None:
        note(warning)
    history, encryption = flags.decisions(options), flags.at_rest(chosen)
    with EmbeddedEngine.open(chosen.engine, chosen.state_dir, history, chosen.models, encryption) as embedded:
        batches, numbers = batches_of_lines(_stdin(), RECORD_BYTES + 1), count(1)

        def deliver(_: int, outputs: "list[Delivered]") -> None:
            """Print outputs as they come. Line numbers count this run's input."""
            line = next(numbers)
            for output in outputs:
                if isinstance(output, DeadLetter):
                    print(orjson.dumps(rejection(line, output)).decode(), file=sys.stderr, flush=True)
                elif options.receipts or isinstance(output, Answer):
                    sys.stdout.buffer.write(output.body + b"\n")
                    sys.stdout.buffer.flush()

        run_lines(embedded, STDIN_TOPIC, lambda *_: read_ahead(batches), deliver, is_replayable=False)


def _stdin() -> io.BufferedIOBase:
    """Return a separate file object: at exit Python waits for sys.stdin, on which the reader thread may block."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # sys.stdin is no file, but an object of a program that runs the command
        return cast(io.BufferedIOBase, sys.stdin.buffer)
