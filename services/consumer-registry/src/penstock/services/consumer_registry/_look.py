"""`ls` of a registry that has no service: the store of jobs that keep their leases themselves."""

from __future__ import annotations

import argparse
import sqlite3
from dataclasses import replace
from typing import TextIO

from penstock.aws import AwsConnectionError, AwsOptions, AwsSession
from penstock.registration import (
    LeaseStore,
    SqliteLeaseStore,
    default_store_path,
    open_local_registry,
    open_store,
)
from penstock.registration.errors import LeaseStoreError
from penstock.services.consumer_registry._table import consumer_table
from penstock.terminal import ExitCode, Screen, Table, watch

LOCAL = "local"
"""The file of jobs that name none."""


async def look_into_store(arguments: argparse.Namespace, out: TextIO) -> int:
    """Write a row per consumer of the store that `--registry-store` names, and change nothing in it.

    Raises:
        AwsOptionError, RegistrationOptionError: a setting is wrong; the error names it.
        RegistrationError: the store cannot be read, or Kinesis not be asked for states.
    """
    session = AwsSession(AwsOptions.from_arguments(arguments))
    registry = open_local_registry(session, store=_store(arguments.registry_store, session))
    screen = Screen(out, as_json=arguments.json)

    async def look() -> list[Table]:
        table = consumer_table(await registry.list_consumers(arguments.stream, with_state=not arguments.no_state))
        return [replace(table, empty=f"no consumers of {session.endpoint_url('kinesis')} in this store")]

    try:
        await watch(screen, look, arguments.watch)
    finally:
        await registry.close()
    return ExitCode.OK


def code_of(error: LeaseStoreError) -> ExitCode:
    """By what is below the error: a file that cannot be, no answer, or one that says no."""
    cause = error.__cause__
    if isinstance(cause, AwsConnectionError):
        return ExitCode.UNREACHABLE
    return ExitCode.USAGE if isinstance(cause, (sqlite3.Error, OSError)) else ExitCode.FAILED


def _store(url: str, session: AwsSession) -> LeaseStore:
    if url == LOCAL:
        return SqliteLeaseStore(default_store_path(), namespace=session.endpoint_url("kinesis"), read_only=True)
    return open_store(url, session, read_only=True)
