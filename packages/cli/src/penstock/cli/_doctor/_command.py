"""`penstock doctor`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Final

from penstock.cli._doctor._run import GROUPS, diagnose
from penstock.cli._doctor._services import CONTRACTS
from penstock.cli._doctor._session import default_spark_conf, read_spark_conf
from penstock.cli._doctor._surroundings import Finding, Service, Surroundings, Verdict, summary
from penstock.terminal import Cell, ExitCode, Form, Parser, Row, Screen, add_json_argument, positive_seconds

_MARKS: Final = {
    Verdict.OK: ("✔", "ok", "green"),
    Verdict.WARNING: ("!", "!", "yellow"),
    Verdict.PROBLEM: ("✘", "X", "bold red"),
    Verdict.SKIPPED: ("–", "-", "dim"),
}
_AWS: Final = ("aws", "stream")
_GROUPS_OF: Final[dict[str, tuple[str, ...]]] = {
    "--stream": ("stream",),
    "--consumer": ("stream",),
    "--write": ("stream",),
    "--region": _AWS,
    "--endpoint-url": _AWS,
    "--profile": _AWS,
    "--ca-bundle": _AWS,
    # spark.local.dir names the machine's disks.
    "--spark-conf": ("spark-session", "machine"),
    "--conf": ("spark-session", "machine"),
    "--reader-host": ("spark-session",),
    "--state-folder": ("machine",),
    **dict.fromkeys((f"--{name}" for name in CONTRACTS), ("services",)),
    "--tls": ("services",),
    "--timeout": ("aws", "services"),
}
"""The groups that look at what a flag says."""


def main(argv: Sequence[str], *, surroundings: Surroundings | None = None) -> int:
    """Find what is wrong, and how to fix it. Returns 1 when there is a problem.

    Args:
        argv: the arguments.
        surroundings: used instead of this process and its arguments.
    """
    parser = _parser()
    arguments = parser.parse_args(argv)
    given = [flag for word in argv if (flag := word.partition("=")[0]) in _GROUPS_OF]
    for flag in given:
        if getattr(arguments, flag[2:].replace("-", "_")) == "":
            parser.error(f"{flag} must not be empty")
        groups = _GROUPS_OF[flag]
        if arguments.only is not None and not {*groups} & {*arguments.only}:
            wanted = " or ".join(f"--only {group}" for group in groups)
            parser.error(f"{flag} needs {wanted}: the groups that were chosen do not look at it")
    if arguments.stream is None and (arguments.consumer or arguments.write):
        parser.error(f"{'--consumer' if arguments.consumer else '--write'} needs --stream")
    if arguments.tls and not any(getattr(arguments, name) for name in CONTRACTS):
        parser.error(f"--tls needs {', '.join(f'--{name}' for name in CONTRACTS)} or a variable of theirs")
    screen = Screen(sys.stdout, as_json=arguments.json)
    try:
        world = surroundings or _surroundings(arguments)
    except OSError as error:
        sys.stderr.write(f"penstock doctor: {error.filename} cannot be read: {error.strerror}: correct --spark-conf\n")
        return ExitCode.USAGE
    except ValueError as error:
        sys.stderr.write(f"penstock doctor: {error}\n")
        return ExitCode.USAGE
    waiting = screen.form is Form.TERMINAL and not screen.console.is_dumb_terminal
    # The log of the packages below, which would go to the standard error, has words of others that may be a secret:
    # those of a credential process.
    hushed = logging.NullHandler()
    logging.getLogger().addHandler(hushed)
    try:
        with screen.console.status("looking", spinner="line") if waiting else nullcontext():
            findings = _show(screen, diagnose(world, _groups(arguments.only)), quiet=arguments.quiet)
    finally:
        logging.getLogger().removeHandler(hushed)
    return ExitCode.FAILED if any(one.verdict is Verdict.PROBLEM for one in findings) else ExitCode.OK


def _show(screen: Screen, findings: Iterable[Finding], *, quiet: bool) -> list[Finding]:
    """Write each as it comes, and give them all."""
    seen = []
    for group, found in groupby(findings, key=lambda finding: finding.group):
        headed = False
        for finding in found:
            seen.append(finding)
            if quiet and finding.verdict not in (Verdict.PROBLEM, Verdict.WARNING):
                continue
            if not headed:
                screen.say(group, "bold")
                headed = True
            screen.show_row(_row(finding, screen))
            if finding.cure and screen.form is Form.TERMINAL:
                screen.say(
                    f"      {'->' if screen.ascii_only else '→'} {finding.cure}",
                    "dim" if finding.verdict is Verdict.SKIPPED else "cyan",
                )
    screen.say(summary(seen), "bold")
    screen.flush()
    return seen


def _row(finding: Finding, screen: Screen) -> Row:
    mark, ascii_mark, style = _MARKS[finding.verdict]
    document = {
        "group": finding.group,
        "check": finding.check,
        "verdict": finding.verdict.value,
        "text": finding.text,
        "cure": finding.cure,
    }
    line = "\t".join((finding.verdict.value, finding.group, finding.check, finding.text, finding.cure or "-"))
    shown = ascii_mark if screen.ascii_only else mark
    said = Cell(finding.text, style="dim" if finding.verdict is Verdict.SKIPPED else "")
    return Row([Cell(f" {shown:<2}", style=style), Cell(f"{finding.check}:", style="bold"), said], document, line)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="penstock doctor",
        description="Find what is wrong with this set-up, and how to fix it. It changes nothing and shows no secret.",
        epilog="exit codes: 0 no problem (there may be warnings), 1 a problem, 2 wrong usage",
    )
    add_json_argument(parser)
    parser.add_argument("--quiet", action="store_true", help="only problems and warnings")
    parser.add_argument(
        "--only", action="append", metavar="GROUP", choices=[*map(_slug, GROUPS)], help=", ".join(map(_slug, GROUPS))
    )
    aws = parser.add_argument_group("AWS", "as the options of the data source; AWS's own variables are read too")
    aws.add_argument("--stream", metavar="NAME", help="try the IAM actions on this stream")
    aws.add_argument("--consumer", metavar="NAME", help="and on this stream consumer: SubscribeToShard as a dry run")
    aws.add_argument("--write", action="store_true", help="put one record into the stream, to see that it can be")
    aws.add_argument("--region")
    aws.add_argument("--endpoint-url", metavar="URL", help="of Kinesis, for emulators and VPC endpoints")
    aws.add_argument("--profile", help="of the shared configuration files")
    aws.add_argument("--ca-bundle", metavar="FILE", help="PEM of the authorities to trust")
    spark = parser.add_argument_group("Spark")
    spark.add_argument(
        "--spark-conf", type=Path, metavar="FILE", help="settings of the session; default: spark-defaults.conf"
    )
    spark.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting, as of spark-submit"
    )
    spark.add_argument("--reader-host", metavar="HOST", help="the option readerHost of the query")
    spark.add_argument("--state-folder", type=Path, metavar="FOLDER", help="where leases and checkpoints are kept")
    services = parser.add_argument_group("services", "certificates and tokens: PENSTOCK_<NAME>_CA_FILE, _TOKEN_FILE, …")
    for name in CONTRACTS:
        variable = f"PENSTOCK_{name.upper()}_ENDPOINT"
        services.add_argument(f"--{name}", metavar="HOST:PORT", default=os.environ.get(variable), help=f"[{variable}]")
    services.add_argument("--tls", action="store_true", help="use TLS with the system's authorities")
    services.add_argument(
        "--timeout", type=positive_seconds, default=5.0, metavar="SECONDS", help="for each answer; default: 5"
    )
    return parser


def _surroundings(arguments: argparse.Namespace) -> Surroundings:
    settings, source = _spark_settings(arguments)
    return Surroundings(
        region=arguments.region,
        endpoint_url=arguments.endpoint_url,
        profile=arguments.profile,
        ca_bundle=arguments.ca_bundle,
        stream=arguments.stream,
        consumer=arguments.consumer,
        write=arguments.write,
        spark_settings=settings,
        spark_settings_from=source,
        reader_host=arguments.reader_host,
        state_folder=arguments.state_folder,
        timeout_seconds=arguments.timeout,
        services=[
            Service(name=name, endpoint=endpoint, tls=arguments.tls)
            for name in CONTRACTS
            if (endpoint := getattr(arguments, name))
        ],
    )


def _spark_settings(arguments: argparse.Namespace) -> tuple[dict[str, str] | None, str]:
    file = arguments.spark_conf or default_spark_conf(os.environ)
    if file is None and not arguments.conf:
        return None, ""
    settings = {} if file is None else read_spark_conf(file)
    for pair in arguments.conf:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--conf {pair!r} is not NAME=VALUE")
        settings[name] = value
    return settings, "--conf" if file is None else str(file)


def _slug(group: str) -> str:
    return group.lower().replace(" ", "-")


def _groups(only: Sequence[str] | None) -> list[str] | None:
    return None if only is None else [group for group in GROUPS if _slug(group) in only]
