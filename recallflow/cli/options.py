"""Options that several commands share."""

import argparse
from pathlib import Path

from recallflow.connectors.embedders import NAMES
from recallflow.flows.settings import Settings


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where the state is and which model it is for."""
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep the state here between runs")
    parser.add_argument("--embedder", choices=NAMES, default="hash", help="embedding model (default: hash)")
    parser.add_argument("--model-path", type=Path, metavar="DIR", help="folder of a local copy of the model")


def add_owner(parser: argparse.ArgumentParser) -> None:
    """Whose memory it is."""
    parser.add_argument("--tenant", default="default", metavar="ID", help="tenant (default: default)")
    parser.add_argument("--user", default="user", metavar="ID", help="user (default: user)")
    parser.add_argument("--environment", default="prod", metavar="NAME", help="environment (default: prod)")


def settings(options: argparse.Namespace) -> Settings:
    """The settings that the options name."""
    return Settings(embedder=options.embedder, model_path=options.model_path)
