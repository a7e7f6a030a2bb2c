"""Round trips of clients for S3 that are programs of their own, through any gateway."""
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
PYPI = os.environ.get("SIPHON_TEST_PYPI") == "1"
WHY = "fetches the newest boto3 and aws from PyPI; SIPHON_TEST_PYPI=1 runs it"


def environment(access, secret, **more):
    """Keys, and no settings of this machine's. rclone does not start with a bundle of certificates of the environment's."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
    return {**env, "AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret, "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", **more}


def ran(argv, env, **kw):
    r = subprocess.run([str(a) for a in argv], capture_output=True, timeout=900, env=env, **kw)
    assert r.returncode == 0, f"{argv}: {r.stdout.decode(errors='replace')}\n{r.stderr.decode(errors='replace')}"
    return r.stdout


def tree(directory):
    """A tree of files: an empty one, small ones, one that is uploaded in parts, and names that must be quoted."""
    (directory / "d" / "deep er").mkdir(parents=True)
    for name, size in (("empty", 0), ("one", 1), ("d/a+b &", 70_000), ("d/deep er/\u00e4", 300_000), ("d/large", (17 << 20) + 5)):
        (directory / name).write_bytes(os.urandom(size))


def contents(directory):
    return {str(f.relative_to(directory)): f.read_bytes() for f in directory.rglob("*") if f.is_file()}


def restic(url, access, secret, bucket, tmp_path):
    """Backups and their restoration, a check that reads all data, and a purge."""
    env = environment(access, secret, RESTIC_REPOSITORY=f"s3:{url}/{bucket}/repository", RESTIC_PASSWORD="secret",
                      RESTIC_CACHE_DIR=str(tmp_path / "cache"))
    source = tmp_path / "source"
    tree(source)
    run = lambda *args: ran(["restic", *args], env, cwd=tmp_path)
    run("init")
    first = contents(source)
    run("backup", "source", "--tag", "first")
    (source / "one").unlink()
    (source / "d" / "large").write_bytes(os.urandom(6 << 20))
    second = contents(source)
    run("backup", "source", "--tag", "second")
    for tag, expected in (("first", first), ("second", second)):
        run("restore", "latest", "--tag", tag, "--target", tmp_path / tag)
        assert contents(tmp_path / tag / "source") == expected, tag
    run("check", "--read-data")
    run("forget", "--tag", "second", "--keep-last", "1", "--prune")
    run("forget", "--tag", "first", "--keep-tag", "second", "--prune")
    run("check", "--read-data")
    run("restore", "latest", "--target", tmp_path / "left")
    assert contents(tmp_path / "left" / "source") == second


def aws(url, access, secret, bucket, tmp_path, packages):
    """The command line of PyPI's `awscli` in the directory `packages`: with checksums of its own, in parts, from a pipe, synchronised,
    moved, presigned, and removed."""
    config = tmp_path / "aws.config"
    # Its presigned links have signatures of version 2 otherwise, which a gateway of ours takes on demand only.
    config.write_text("[default]\ns3 =\n  signature_version = s3v4\n")
    env = environment(access, secret, PYTHONPATH=str(packages), AWS_CONFIG_FILE=str(config))
    source, back = tmp_path / "aws", tmp_path / "back"
    tree(source)
    run = lambda *args, **kw: ran([sys.executable, "-m", "awscli", "--endpoint-url", url, *args], env, **kw)
    run("s3", "mb", f"s3://{bucket}")
    run("s3", "cp", source / "d" / "large", f"s3://{bucket}/one/large")
    run("s3", "cp", "-", f"s3://{bucket}/one/pipe", input=b"from a pipe")
    assert run("s3", "cp", f"s3://{bucket}/one/pipe", "-") == b"from a pipe"
    run("s3", "sync", source, f"s3://{bucket}/tree")
    assert run("s3", "sync", source, f"s3://{bucket}/tree") == b"", "what is there was sent once more"
    assert len(run("s3", "ls", "--recursive", f"s3://{bucket}/tree/").splitlines()) == 5
    run("s3", "mv", "--recursive", f"s3://{bucket}/tree", f"s3://{bucket}/moved")
    run("s3", "cp", "--recursive", f"s3://{bucket}/moved", back)
    assert contents(back) == contents(source)
    link = run("s3", "presign", f"s3://{bucket}/moved/d/a+b &").decode().strip()
    with urllib.request.urlopen(link, timeout=60) as answer:
        assert answer.read() == (source / "d" / "a+b &").read_bytes()
    run("s3api", "get-object", "--bucket", bucket, "--key", "one/large", "--checksum-mode", "ENABLED", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == (source / "d" / "large").read_bytes()
    run("s3", "rm", "--recursive", f"s3://{bucket}")
    run("s3", "rb", f"s3://{bucket}")


# Tests of test_s3.py that radosgw 16.2 and 18.2 do not pass, on a stock cluster either: a PUT with `If-Match` is refused though the
# object has that tag, a GET of a part answers all of the object, and the refusal of an empty deletion has no code.
NOT_OF_RADOSGW = ("test_conditions", "test_multipart", "test_what_is_wrong_is_refused_and_stores_nothing")


def boto3(url, access, secret, packages, without=()):
    """The tests of test_s3.py that need a gateway only, with the boto3 in the directory `packages`."""
    env = environment(access, secret, PYTHONPATH=str(packages), SIPHON_TEST_S3=f"{url},{access},{secret}")
    env.pop("SIPHON_TEST_CHROOT", None)
    version = ran([sys.executable, "-c", "import boto3; print(boto3.__version__)"], env).decode()
    assert [int(n) for n in version.split(".")[:2]] >= [1, 36], f"boto3 {version} has no checksums of its own"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_s3.py", "-k", f"not ({' or '.join(['s3cmd', 'rclone', 'restic', 'pypi', *without])})"]
    told = ran(argv, env, cwd=HERE).decode()
    assert " passed" in told, told


def of_pypi(url, access, secret, tmp_path, without=()):
    """What PyPI has newest, fetched for the occasion; of the tests of test_s3.py some are left out."""
    packages = tmp_path / "packages"
    ran([sys.executable, "-m", "pip", "install", "-q", "--target", packages, "boto3", "awscli"], dict(os.environ))
    boto3(url, access, secret, packages, without)
    aws(url, access, secret, "of-aws", tmp_path, packages)
