"""`penstock completion`: a script for the shell, with the installed commands, their flags and the names of streams."""

from __future__ import annotations

import asyncio
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
_GROUP: Final = re.compile(r"\{([a-z]+(?:,[a-z]+)*)\}")
_STREAM: Final = re.compile(r"(?<![\w-])STREAM\b|--stream NAME")
_ANSWER_SECONDS: Final = 3.0
_KEPT_SECONDS: Final = 10
"""The shell keeps the names of streams for so long: each question takes a call of ListStreams."""

_BASH: Final = """\
_penstock_streams() {{
  local where="$AWS_PROFILE $AWS_REGION $AWS_DEFAULT_REGION $AWS_ENDPOINT_URL $AWS_ENDPOINT_URL_KINESIS"
  if [ "$where" != "$_penstock_where" ] || [ $((SECONDS - _penstock_asked)) -ge {kept} ]; then
    _penstock_names="$(penstock completion streams 2>/dev/null)"; _penstock_where="$where"; _penstock_asked=$SECONDS
  fi
}}
_penstock() {{
  local words at="${{COMP_WORDS[COMP_CWORD]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands} --help --version"
  else case "${{COMP_WORDS[1]}}" in
{cases}
  esac; fi
  case "$at ${{COMP_WORDS[1]}}" in
    -*) ;;
    {takers}) if [ "$COMP_CWORD" -gt 1 ]; then _penstock_streams; words="$words $_penstock_names"; fi ;;
  esac
  COMPREPLY=( $(compgen -W "$words" -- "$at") )
}}
complete -o default -F _penstock penstock
"""
_FISH: Final = """\
function __penstock_streams
  set -l where "$AWS_PROFILE $AWS_REGION $AWS_DEFAULT_REGION $AWS_ENDPOINT_URL $AWS_ENDPOINT_URL_KINESIS"
  if test "$where" != "$__penstock_where"; or test (math (date +%s) - $__penstock_asked) -ge {kept}
    set -g __penstock_names (penstock completion streams 2>/dev/null)
    set -g __penstock_where "$where"; set -g __penstock_asked (date +%s)
  end
  printf '%s\\n' $__penstock_names
end
complete -c penstock -n '__fish_seen_subcommand_from {takers}' -a '(__penstock_streams)'
"""


def main(argv: Sequence[str]) -> int:
    """Write the script of a shell to the standard output, or the names of streams, one on a line."""
    parser = Parser(
        prog="penstock completion",
        description="Write a script that completes commands, flags and names of streams. "
        'For bash: eval "$(penstock completion bash)"',
    )
    parser.add_argument(
        "shell", choices=(*SHELLS, "streams"), help="the shell, or streams: list the names, as these scripts do"
    )
    shell = parser.parse_args(argv).shell
    if shell == "streams":
        return _list_streams()
    words, takers = words_of(find_commands())
    sys.stdout.write(script(shell, words, takers))
    return ExitCode.OK


def _list_streams() -> int:
    """Names of streams for a shell that waits: without retries, and without a message where there are none."""
    try:
        names = asyncio.run(_stream_names())
    except Exception:
        # A message would disturb the command line that is being typed.
        return ExitCode.FAILED
    sys.stdout.writelines(f"{name}\n" for name in names)
    return ExitCode.OK


async def _stream_names() -> list[str]:
    from penstock.aws import AwsOptions, AwsSession, JsonClient

    async with asyncio.timeout(_ANSWER_SECONDS), JsonClient(AwsSession(AwsOptions())) as client:
        # One page: a list of thousands of names is of no use in a shell.
        return list((await client.call("ListStreams", {"Limit": 1000}))["StreamNames"])


def words_of(commands: Mapping[str, Command]) -> tuple[dict[str, list[str]], list[str]]:
    """Sub-commands and flags of each installed command, by its help; and the commands that take a stream."""
    words, takers = {}, []
    for command in commands.values():
        if command.entry_point is None or command.name == "completion":
            continue
        text = _help_of(command)
        groups = list(dict.fromkeys(word for group in _GROUP.findall(text) for word in group.split(",")))
        # Flags of `serve` are dozens, for unit files; they are offered where a command does nothing else.
        text += "".join(_help_of(command, group) for group in groups if group != "serve" or groups == ["serve"])
        words[command.name] = list(dict.fromkeys([*groups, *_FLAG.findall(text)]))
        if _STREAM.search(text):
            takers.append(command.name)
    words["completion"] = [*SHELLS]
    return words, takers


def _help_of(command: Command, *words: str) -> str:
    out = io.StringIO()
    # Whatever a package does when it is asked for its help: the others' commands are completed.
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit, Exception):
        command.load()([*words, "--help"])
    return out.getvalue()


def script(shell: str, words: Mapping[str, Sequence[str]], takers: Sequence[str] = ()) -> str:
    """The script of a shell.

    Args:
        shell: one of `SHELLS`.
        words: what to offer after each command.
        takers: commands after which names of streams are offered too.
    """
    if shell == "fish":
        lines = [f"complete -c penstock -n __fish_use_subcommand -a '{' '.join(words)}'"]
        lines += [
            f"complete -c penstock -n '__fish_seen_subcommand_from {name}' -a '{' '.join(each)}'"
            for name, each in words.items()
        ]
        return "\n".join(lines) + "\n" + _FISH.format(takers=" ".join(takers), kept=_KEPT_SECONDS)
    cases = "\n".join(f'    {name}) words="{" ".join(each)}" ;;' for name, each in words.items())
    taking = "|".join(f'*" {name}"' for name in takers) or "''"
    bash = _BASH.format(commands=" ".join(words), cases=cases, takers=taking, kept=_KEPT_SECONDS)
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash if shell == "zsh" else bash
