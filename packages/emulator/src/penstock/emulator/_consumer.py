"""A registered stream consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Consumer:
    """A consumer and its life: CREATING until `active_at`, then ACTIVE, DELETING once `deleted_at` is known."""

    name: str
    arn: str
    stream_arn: str
    created: int
    """Seconds since the epoch; part of the ARN, and therefore unique among consumers of the same name."""
    active_at: float
    deleted_at: float | None = None
    """When the consumer, being deleted, is gone."""
    tags: dict[str, str] = field(default_factory=dict)

    def status(self, now: float) -> str:
        """CREATING, ACTIVE or DELETING."""
        if self.deleted_at is not None:
            return "DELETING"
        return "ACTIVE" if now >= self.active_at else "CREATING"

    def as_dict(self, now: float) -> dict[str, Any]:
        """The consumer as RegisterStreamConsumer and ListStreamConsumers describe it."""
        return {
            "ConsumerName": self.name,
            "ConsumerARN": self.arn,
            "ConsumerStatus": self.status(now),
            "ConsumerCreationTimestamp": self.created,
        }
