"""`recallflow mcp`: memory as tools for language models."""

import argparse
from typing import TYPE_CHECKING

from recallflow.cli.options import ENGINE, GRAPH, LLM, RERANK, add_control, add_create, add_kafka, decisions
from recallflow.cli.serve import TOPICS
from recallflow.cli.until_stopped import run_until_stopped
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.flows.config import Config


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "mcp",
        help="memory as tools for language models (MCP)",
        description="Serves search_memory, add_memory, forget_memory and list_episodes on standard input and output, "
        "for one user, or over HTTP, where each request names its user in x-end-user-id. Asks the engine over Kafka; "
        "with --state-dir the engine is in this process. Credentials: auth.api_key, or those of each HTTP request.",
        examples=(
            "recallflow mcp --state-dir memory",
            "recallflow mcp --bootstrap-servers localhost:9092 --http 127.0.0.1:8765",
        ),
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="streamable HTTP at /mcp, instead of standard input")
    parser.add_argument("--tenant", default="default", metavar="ID", help="tenant (default: default)")
    parser.add_argument("--user", metavar="ID", help="user (default: user); over HTTP each request names its own")
    parser.add_argument("--environment", default="prod", metavar="NAME", help="environment (default: prod)")
    parser.add_argument("--project", metavar="NAME", help="only this project's memories; new ones belong to it")
    add_kafka(parser, *TOPICS, *ENGINE, *GRAPH, *RERANK, *LLM, "llm.query_timeout_ms", "run.log_format")
    add_control(parser)
    add_create(parser)
    parser.add_argument("--print-config", action="store_true", help="print the settings that hold, and from where")
    parser.set_defaults(run=run_server)


def run_server(options: argparse.Namespace) -> int:
    def run(config: "Config") -> None:
        from recallflow.connectors.mcp.perform import Place
        from recallflow.flows import mcp  # which needs an extra

        if options.http and options.user:
            raise UsageError("--user: over HTTP each request names its user, in x-end-user-id; leave it out")
        if options.control is not None and options.state_dir is None:
            raise UsageError("--control goes with --state-dir: before Kafka, decisions stand in the control topic")
        at = mcp.Address.parse(options.http) if options.http else None
        place = Place(options.tenant, options.environment, options.project)
        opened = mcp.embedded(config, decisions(options)) if options.state_dir else mcp.behind_kafka(config)
        with opened as behind:
            if at is None:
                mcp.serve_user(config, behind, place, options.user or "user")
            else:
                mcp.serve_http(config, behind, place, at)

    return run_until_stopped(options, run)
