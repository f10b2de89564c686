"""`penstock completion`: a script for the shell, with the commands and flags that are installed now."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.cli._commands import Command, find_commands
from penstock.terminal import ExitCode, Parser

SHELLS: Final = ("bash", "zsh", "fish")
_FLAG: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_GROUP: Final = re.compile(r"\{([a-z]+(?:,[a-z]+)+)\}")

_BASH: Final = """\
_penstock() {{
  local words
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands} --help --version"
  else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  COMPREPLY=( $(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}") )
}}
complete -o default -F _penstock penstock
"""


def main(argv: Sequence[str]) -> int:
    """Write the script of a shell to the standard output."""
    parser = Parser(prog="penstock completion", description='For bash: eval "$(penstock completion bash)"')
    parser.add_argument("shell", choices=SHELLS)
    shell = parser.parse_args(argv).shell
    sys.stdout.write(script(shell, words_of(find_commands())))
    return ExitCode.OK


def words_of(commands: Mapping[str, Command]) -> dict[str, list[str]]:
    """Sub-commands and flags of each installed command, as its help tells them."""
    words = {}
    for command in commands.values():
        if command.entry_point is None or command.name == "completion":
            continue
        text = _help_of(command)
        groups = [word for group in _GROUP.findall(text) for word in group.split(",")]
        # Those of `serve` are dozens, for who writes a unit file.
        text += "".join(_help_of(command, group) for group in groups if group != "serve")
        words[command.name] = list(dict.fromkeys([*groups, *_FLAG.findall(text)]))
    words["completion"] = [*SHELLS]
    return words


def _help_of(command: Command, *words: str) -> str:
    out = io.StringIO()
    # Whatever a package does when it is asked for its help: the others' commands are completed.
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit, Exception):
        command.load()([*words, "--help"])
    return out.getvalue()


def script(shell: str, words: Mapping[str, Sequence[str]]) -> str:
    """The script of a shell."""
    if shell == "fish":
        lines = [f"complete -c penstock -n __fish_use_subcommand -a '{' '.join(words)}'"]
        lines += [
            f"complete -c penstock -n '__fish_seen_subcommand_from {name}' -a '{' '.join(each)}'"
            for name, each in words.items()
        ]
        return "\n".join(lines) + "\n"
    cases = "\n".join(f'    {name}) words="{" ".join(each)}" ;;' for name, each in words.items())
    bash = _BASH.format(commands=" ".join(words), cases=cases)
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash if shell == "zsh" else bash
