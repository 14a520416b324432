"""A server that speaks S3's protocol over HTTP (moto's), in this process; it can go away, and come back."""

import logging
from typing import Self

import boto3
import pytest
from moto.server import ThreadedMotoServer

REGION = "eu-west-1"
BUCKET = "checkpoints"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


class S3Server:
    """Buckets survive a pause of the server and are shared in the process. `credentials` sets the clients'
    variables."""

    def __init__(self, credentials: pytest.MonkeyPatch, bucket: str = BUCKET) -> None:
        self._bucket = bucket
        for name, value in CREDENTIALS.items():
            credentials.setenv(name, value)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._port = 0
        self.come()
        self.client = boto3.client("s3", region_name=REGION, endpoint_url=f"http://127.0.0.1:{self._port}")
        self.client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})

    def url(self, prefix: str, bucket: str | None = None) -> str:
        options = f"endpoint_override=127.0.0.1:{self._port}&scheme=http&region={REGION}"
        return f"s3://{bucket or self._bucket}/{prefix}?{options}"

    def come(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    def go(self) -> None:
        self._server.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go()
