"""Answers in CBOR, as Kinesis gives them to requests in CBOR, for what reads JSON."""

import msgspec


def as_json(body: bytes) -> bytes:
    """A body in JSON, whichever of both it is in; blobs become base64.

    A service may answer a request in CBOR with JSON (errors of what stands before it are), so the body is looked at.

    Raises:
        ValueError: it is neither.
    """
    if body[:1] in (b"", b"{"):
        return body
    # Only answers with failures are read as a whole: most processes never need this.
    import cbor2

    try:
        return msgspec.json.encode(cbor2.loads(body))
    except (cbor2.CBORDecodeError, TypeError) as error:
        raise ValueError(f"a body that is neither JSON nor CBOR: {error}") from error
