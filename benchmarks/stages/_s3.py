"""An S3 for benchmarks: moto's server in a process of its own."""

import atexit
import functools
import subprocess
import sys

import boto3

BUCKET = "bench"
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@functools.cache
def store_options() -> dict[str, str]:
    """Options of a store in the bucket; the server goes with this process."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.kill)
    assert process.stdout is not None
    endpoint_url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
    keys = {"awsAccessKeyId": "bench", "awsSecretAccessKey": "bench", "region": "us-east-1"}
    client = boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="bench",
        aws_secret_access_key="bench",
    )
    client.create_bucket(Bucket=BUCKET)
    return {**keys, "endpointUrl": endpoint_url}
