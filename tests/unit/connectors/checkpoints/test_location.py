"""Where checkpoints are: wrong URLs are told field by field, and nothing shows a secret."""

from pathlib import Path

import pytest

from recallflow.connectors.checkpoints.objects import locate
from recallflow.connectors.checkpoints.store import CheckpointStore
from recallflow.errors import UsageError
from tests.s3_server import S3Server

WRONG = {
    "backups": r"\(backups\): scheme: is missing of s3, gs, file; a folder is file:///mnt/backups",
    "": r"scheme: is missing",
    "ftp://host/x": r"\(ftp://host/x\): scheme: ftp is none of s3, gs, file",
    "s3://": r"bucket: is missing",
    "s3:///x": r"bucket: is missing",
    "gs://?x=1#y": r"bucket: is missing; fragment: # has no meaning here",
    "s3://bucket/x?endpoint=minio": r"options: Unexpected query parameter in S3 URI: 'endpoint'",
    "gs://bucket/x?region=eu": r"options: Unexpected query parameter in GCS URI: 'region'",
    "file://backups/x": r"host: backups: a folder has none",
    "file:": r"path: is missing: name a folder",
    "file://host?a=b": r"host: host: .*; path: is missing.*; options: a folder takes none",
}


@pytest.mark.parametrize("url", WRONG)
def test_a_wrong_url_is_told_field_by_field(url: str) -> None:
    with pytest.raises(UsageError, match=rf"URL of checkpoints .*{WRONG[url]}"):
        CheckpointStore.open(url)


@pytest.mark.parametrize("secret", ["wJalrXUtnFEMI", "wJalr/XUtn+FEMI", "wJalr@XUtnFEMI", "wJalr?XUtnFEMI"])
def test_credentials_in_a_url_are_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(UsageError, match=r"credentials: they do not belong in it.*AWS_SECRET_ACCESS_KEY") as refused:
        CheckpointStore.open(f"s3://AKIAKEY:{secret}@bucket/prefix?region=eu-west-1")
    assert "XUtn" not in str(refused.value)
    assert "AKIAKEY" not in str(refused.value)


def test_options_are_not_shown(s3: S3Server) -> None:
    assert CheckpointStore.open(s3.url("team/acme")).shown == "s3://checkpoints/team/acme"
    assert locate("gs://anonymous@bucket/x/").root == "bucket/x"


def test_a_bucket_that_there_is_not_is_no_empty_one(s3: S3Server) -> None:
    with pytest.raises(UsageError, match=r"\(s3://mistyped/x\): bucket: there is none of the name mistyped"):
        CheckpointStore.open(s3.url("x", bucket="mistyped"))


def test_a_folder_is_named_as_a_url_or_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("file:backups").root == str(tmp_path / "backups")
    assert locate((tmp_path / "a b").as_uri()).root == str(tmp_path / "a b")
