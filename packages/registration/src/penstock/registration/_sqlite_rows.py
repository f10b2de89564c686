"""Records as rows of SQLite."""

from __future__ import annotations

import sqlite3
from typing import Final

from penstock.registration._record import ConsumerRecord, Holding, RegistrationPhase

COLUMNS: Final = (
    # Its ARN: the name in rows of the first release, whose jobs go on to look for them by this column.
    "stream_name",
    "consumer_name",
    "version",
    "fencing_token",
    "created_at",
    "phase",
    "consumer_arn",
    "registration_is_ours",
    "registering_token",
    "job_id",
    "holding_token",
    "acquired_at",
    "renewed_at",
    "time_to_live_seconds",
    "idle_since",
    "ended_token",
    "claim",
)
CREATE: Final = """
CREATE TABLE IF NOT EXISTS consumers (
  namespace TEXT NOT NULL,
  stream_name TEXT NOT NULL,
  consumer_name TEXT NOT NULL,
  version INTEGER NOT NULL,
  fencing_token INTEGER NOT NULL,
  created_at REAL NOT NULL,
  phase TEXT NOT NULL,
  consumer_arn TEXT NOT NULL,
  registration_is_ours INTEGER NOT NULL,
  registering_token INTEGER NOT NULL,
  job_id TEXT,
  holding_token INTEGER,
  acquired_at REAL,
  renewed_at REAL,
  time_to_live_seconds REAL,
  idle_since REAL,
  ended_token INTEGER NOT NULL DEFAULT 0,
  claim TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (namespace, stream_name, consumer_name)
) WITHOUT ROWID
"""
UPGRADES: Final = {
    1: (
        "ALTER TABLE consumers ADD COLUMN ended_token INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE consumers ADD COLUMN claim TEXT NOT NULL DEFAULT ''",
    )
}
"""From one schema to the next. Records by the name of a stream are moved to its ARN by the registry."""
SELECT_1: Final = f"SELECT {', '.join(COLUMNS[:-2])}, 0 AS ended_token, '' AS claim FROM consumers WHERE namespace = ?"
"""Of a file of the first schema that may only be read."""
SELECT: Final = f"SELECT {', '.join(COLUMNS)} FROM consumers WHERE namespace = ?"
INSERT: Final = (
    f"INSERT INTO consumers (namespace, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)}) ON CONFLICT DO NOTHING"
)
UPDATE: Final = (
    f"UPDATE consumers SET {', '.join(f'{name} = ?' for name in COLUMNS[2:])}"
    " WHERE namespace = ? AND stream_name = ? AND consumer_name = ? AND version = ?"
)
RENEW: Final = (
    "UPDATE consumers SET version = version + 1, renewed_at = ?"
    " WHERE namespace = ? AND stream_name = ? AND consumer_name = ? AND job_id = ? AND holding_token = ?"
    " RETURNING time_to_live_seconds"
)


def to_row(record: ConsumerRecord) -> tuple[object, ...]:
    """In the order of `COLUMNS`, with the version that it will have when it is written."""
    holding = record.holding
    held = (
        (None,) * 5
        if holding is None
        else (
            holding.job_id,
            holding.fencing_token,
            holding.acquired_at,
            holding.renewed_at,
            holding.time_to_live_seconds,
        )
    )
    return (
        record.stream_arn,
        record.consumer_name,
        record.version + 1,
        record.fencing_token,
        record.created_at,
        record.phase.value,
        record.consumer_arn,
        int(record.registration_is_ours),
        record.registering_token,
        *held,
        record.idle_since,
        record.ended_token,
        "" if holding is None else holding.claim,
    )


def from_row(row: sqlite3.Row) -> ConsumerRecord:
    """The record as it was written."""
    holding = None
    if row["holding_token"] is not None:
        holding = Holding(
            job_id=row["job_id"],
            fencing_token=row["holding_token"],
            acquired_at=row["acquired_at"],
            renewed_at=row["renewed_at"],
            time_to_live_seconds=row["time_to_live_seconds"],
            claim=row["claim"],
        )
    return ConsumerRecord(
        stream_arn=row["stream_name"],
        consumer_name=row["consumer_name"],
        created_at=row["created_at"],
        version=row["version"],
        fencing_token=row["fencing_token"],
        phase=RegistrationPhase(row["phase"]),
        consumer_arn=row["consumer_arn"],
        registration_is_ours=bool(row["registration_is_ours"]),
        registering_token=row["registering_token"],
        holding=holding,
        idle_since=row["idle_since"],
        ended_token=row["ended_token"],
    )
