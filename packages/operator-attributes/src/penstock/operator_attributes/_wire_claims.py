"""Claims to and from the contract `penstock.proto.stage_scheduler.v1`."""

from penstock.operator_attributes._claims import Claim, ClaimDecision
from penstock.operator_attributes.errors import InvalidDocumentError
from penstock.proto.stage_scheduler.v1 import stage_scheduler_pb2 as pb

_DECISIONS = {
    ClaimDecision.COMPUTE: pb.CLAIM_DECISION_COMPUTE,
    ClaimDecision.WAIT: pb.CLAIM_DECISION_WAIT,
    ClaimDecision.REUSE: pb.CLAIM_DECISION_REUSE,
}
_DECISION_OF = {value: decision for decision, value in _DECISIONS.items()}

ClaimReference = pb.RenewClaimRequest | pb.CommitClaimRequest | pb.ReleaseClaimRequest | pb.ForgetClaimRequest


def claim_to_wire(claim: Claim) -> pb.ClaimResponse:
    """The answer to Claim."""
    return pb.ClaimResponse(
        decision=_DECISIONS[claim.decision],
        token=claim.token,
        owner=claim.owner,
        expires_seconds=claim.expires_seconds,
        location=claim.location,
        rows=claim.rows,
        size_bytes=claim.size_bytes,
    )


def claim_from_wire(store: str, fingerprint: str, response: pb.ClaimResponse) -> Claim:
    """The answer to Claim. Raises: InvalidDocumentError."""
    if response.decision not in _DECISION_OF:
        raise InvalidDocumentError("decision", "unknown value")
    return Claim(
        store=store,
        fingerprint=fingerprint,
        decision=_DECISION_OF[response.decision],
        owner=response.owner,
        token=response.token,
        expires_seconds=response.expires_seconds,
        location=response.location,
        rows=response.rows if response.HasField("rows") else None,
        size_bytes=response.size_bytes if response.HasField("size_bytes") else None,
    )


def commit_to_wire(claim: Claim, *, location: str, rows: int | None, size_bytes: int | None) -> pb.CommitClaimRequest:
    """A request for CommitClaim."""
    return pb.CommitClaimRequest(
        store=claim.store,
        fingerprint=claim.fingerprint,
        token=claim.token,
        location=location,
        rows=rows,
        size_bytes=size_bytes,
    )


def reference_from_wire(request: ClaimReference) -> Claim:
    """The claim that a request is about, as far as the request says."""
    return Claim(
        store=request.store,
        fingerprint=request.fingerprint,
        decision=ClaimDecision.COMPUTE,
        owner="",
        token=request.token,
    )
