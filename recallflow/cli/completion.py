"""`recallflow completion`: what a shell completes commands, options, choices and files by."""

import argparse
import os

SHELLS = {
    "bash": 'put this into ~/.bashrc: eval "$(recallflow completion bash)"',
    "zsh": 'put this into ~/.zshrc, behind compinit: eval "$(recallflow completion zsh)"',
    "fish": "recallflow completion fish > ~/.config/fish/completions/recallflow.fish",
}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    where = "\n".join(f"{shell}: {how}" for shell, how in SHELLS.items())
    parser = commands.add_parser(
        "completion",
        help="have the shell complete what is typed",
        description=f"Prints the script that a shell completes commands, options and files by.\n{where}",
        examples=('eval "$(recallflow completion bash)"', "recallflow completion fish | head -3"),
    )
    parser.add_argument("shell", choices=[*SHELLS])
    parser.set_defaults(run=run)


def complete(parser: argparse.ArgumentParser) -> None:
    """Ends the process with completions, where a shell asks for them."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    argcomplete.autocomplete(parser, always_complete_options="long")


def run(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    print(shellcode(["recallflow"], shell=options.shell))
    return 0
