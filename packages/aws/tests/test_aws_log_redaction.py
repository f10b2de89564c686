import logging

import pytest
from moto.server import ThreadedMotoServer

from penstock.aws import AwsOptions, AwsSession

SECRETS = ("planted/key+0f1e2d3c", "plantedTOKEN998877==", "planted-external-0011")


def test_what_botocore_logs_holds_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG it logs whole requests and answers: the log contains neither the caller's secrets nor the role's."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    key, token, external = SECRETS
    options = AwsOptions(
        region="us-east-1",
        endpoint_url=f"http://{host}:{port}",
        access_key_id="ASIATEST",
        secret_access_key=key,
        session_token=token,
        role_arn="arn:aws:iam::123456789012:role/reader",
        role_external_id=external,
        sts_endpoint_url=f"http://{host}:{port}",
    )
    caplog.set_level(logging.DEBUG)
    try:
        session = AwsSession(options)
        role = session.frozen_credentials()
        session.sign("POST", options.endpoint_url or "", {}, b"{}")
        session.client("kinesis").list_streams()
    finally:
        server.stop()
    assert "AssumeRole" in caplog.text
    assert "***" in caplog.text
    assert role.secret_key
    assert role.token
    for secret in (*SECRETS, role.secret_key, role.token):
        assert secret not in caplog.text, caplog.text[caplog.text.find(secret) - 300 :][:400]
