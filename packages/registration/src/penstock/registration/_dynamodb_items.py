"""Records as items of DynamoDB."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.registration._record import ConsumerRecord, Holding, RegistrationPhase

Item = dict[str, dict[str, Any]]

PARTITION_KEY: Final = "stream"
"""Namespace and stream ARN: the consumers of a stream lie together, and streams spread over partitions."""
SORT_KEY: Final = "consumer_name"
KEY_SCHEMA: Final = (
    {"AttributeName": PARTITION_KEY, "KeyType": "HASH"},
    {"AttributeName": SORT_KEY, "KeyType": "RANGE"},
)
KEY_TYPES: Final = tuple({"AttributeName": name, "AttributeType": "S"} for name in (PARTITION_KEY, SORT_KEY))


def partition_of(namespace: str, stream_arn: str) -> str:
    """The partition key. An ARN, or a name of the first release, holds no blank, so that it tells both of its parts."""
    return f"{stream_arn} {namespace}"


def key_of(namespace: str, stream_arn: str, consumer_name: str) -> Item:
    """The primary key."""
    return {PARTITION_KEY: {"S": partition_of(namespace, stream_arn)}, SORT_KEY: {"S": consumer_name}}


def to_item(record: ConsumerRecord, namespace: str, write_id: str) -> Item:
    """With the version that it will have when it is written, and the id of the attempt to write it."""
    item: Item = {
        **key_of(namespace, *record.key),
        "namespace": {"S": namespace},
        # So that a replica of the first release, which knows streams by this attribute, finds the same lease.
        "stream_name": {"S": record.stream_arn},
        "version": _number(record.version + 1),
        "write_id": {"S": write_id},
        "fencing_token": _number(record.fencing_token),
        "created_at": _number(record.created_at),
        "phase": {"S": record.phase.value},
        "consumer_arn": {"S": record.consumer_arn},
        "registration_is_ours": {"BOOL": record.registration_is_ours},
        "registering_token": _number(record.registering_token),
        "ended_token": _number(record.ended_token),
    }
    holding = record.holding
    if holding is not None:
        item |= {
            "job_id": {"S": holding.job_id},
            "holding_token": _number(holding.fencing_token),
            "acquired_at": _number(holding.acquired_at),
            "renewed_at": _number(holding.renewed_at),
            "time_to_live_seconds": _number(holding.time_to_live_seconds),
            "claim": {"S": holding.claim},
        }
    if record.idle_since is not None:
        item["idle_since"] = _number(record.idle_since)
    return item


def from_item(item: Mapping[str, Mapping[str, Any]]) -> ConsumerRecord:
    """The record as it was written."""
    holding = None
    if "holding_token" in item:
        holding = Holding(
            job_id=item["job_id"]["S"],
            fencing_token=int(item["holding_token"]["N"]),
            acquired_at=float(item["acquired_at"]["N"]),
            renewed_at=float(item["renewed_at"]["N"]),
            time_to_live_seconds=float(item["time_to_live_seconds"]["N"]),
            claim=item["claim"]["S"] if "claim" in item else "",
        )
    return ConsumerRecord(
        stream_arn=item["stream_name"]["S"],
        consumer_name=item[SORT_KEY]["S"],
        created_at=float(item["created_at"]["N"]),
        version=int(item["version"]["N"]),
        fencing_token=int(item["fencing_token"]["N"]),
        phase=RegistrationPhase(item["phase"]["S"]),
        consumer_arn=item["consumer_arn"]["S"],
        registration_is_ours=bool(item["registration_is_ours"]["BOOL"]),
        registering_token=int(item["registering_token"]["N"]),
        holding=holding,
        idle_since=float(item["idle_since"]["N"]) if "idle_since" in item else None,
        # Absent from items of the first release, as the claim is.
        ended_token=int(item["ended_token"]["N"]) if "ended_token" in item else 0,
    )


def _number(value: float) -> dict[str, str]:
    # The shortest text that reads back as the same number: DynamoDB keeps 38 digits, a float needs 17 at most.
    return {"N": repr(value)}
