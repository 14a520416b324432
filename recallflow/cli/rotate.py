"""`recallflow state rotate-key`: another master key for a state directory, without touching what it protects."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recallflow.cli.options import STATE, add_settings, config
from recallflow.errors import UsageError

if TYPE_CHECKING:
    from recallflow.flows.settings import EncryptionSettings
    from recallflow.master_key import MasterKey

HOW = "give the new master key: --to-master-key-file FILE or --to-kms-key ID"


def add_to(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Below `recallflow state`."""
    rotating = actions.add_parser(
        "rotate-key",
        help="another master key; nothing that is encrypted is written anew",
        description="Wraps the directory's secret with another master key. The one before is given as usual. "
        "Checkpoints made before keep needing that one.",
        examples=(
            "recallflow state rotate-key --state-dir sealed --master-key-file old.key --to-master-key-file new.key",
        ),
    )
    new = rotating.add_mutually_exclusive_group()
    new.add_argument("--to-master-key-file", type=Path, metavar="FILE", help="the new key: 32 bytes in base64")
    new.add_argument("--to-kms-key", metavar="ID", help="the new key: one of AWS KMS, by id or ARN")
    add_settings(rotating, *STATE)
    rotating.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from recallflow.flows.settings import open_at_rest
    from recallflow.state.rewrap import rewrap

    chosen = config(options)
    state_dir, master_key = chosen.named_state_dir(), _new(options, chosen.encryption)
    rewrap(state_dir, open_at_rest(chosen.encryption), master_key)
    print(f"{state_dir}: its master key is {master_key.name} from now on")
    return 0


def _new(options: argparse.Namespace, settings: "EncryptionSettings") -> "MasterKey":
    from recallflow.flows.settings import open_at_rest

    named = {"master_key_file": options.to_master_key_file, "master_key": None, "kms_key": options.to_kms_key}
    master_key = open_at_rest(replace(settings, **named)).master_key
    if master_key is None:
        raise UsageError(HOW)
    return master_key
