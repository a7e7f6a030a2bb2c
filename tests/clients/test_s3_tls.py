"""TLS of `siphon s3`: boto3 and curl with a certificate that the test makes, certificates that change, handshakes that
never end."""
import shutil
import signal
import socket
import ssl
import subprocess

import pytest

from conftest import BINARY, CHROOT, eventually, free_port
from s3_cluster import read_env

boto3 = pytest.importorskip("boto3")
from botocore.config import Config
from botocore.exceptions import SSLError

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")


def certificate(directory, name):
    """A certificate of 127.0.0.1 that is its own root, and its key."""
    chain, key = directory / f"{name}.pem", directory / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                    "-out", str(chain), "-keyout", str(key)], check=True, capture_output=True, timeout=60)
    return chain, key


@pytest.fixture(scope="module")
def served(siphon_factory, tmp_path_factory):
    """A gateway with TLS: its port, process, files and keys."""
    assert shutil.which("openssl"), "not installed: openssl"
    directory = tmp_path_factory.mktemp("tls")
    cluster = siphon_factory(extra=["--s3", str(free_port())])
    cluster.start(timeout=120)
    used = {name: directory / f"used.{name}" for name in ("pem", "key")}
    first = certificate(directory, "first")
    for path, to in zip(first, used.values()):
        shutil.copy(path, to)
    port = free_port()
    argv = [str(BINARY), "s3", "--data-dir", str(cluster.directory), "--bind", f"127.0.0.1:{port}", "--threads", "1",
            "--tls-cert", str(used["pem"]), "--tls-key", str(used["key"])]
    log = open(directory / "log", "w")
    process = subprocess.Popen(argv, stdout=log, stderr=log)

    def serves():
        assert process.poll() is None, (directory / "log").read_text()
        return f"https://127.0.0.1:{port}" in (directory / "log").read_text()

    eventually(serves, what="a gateway")
    yield {"port": port, "process": process, "used": used, "first": first[0], "directory": directory,
           "env": read_env(cluster.directory / "s3.env"), "data": cluster.directory}
    process.terminate()
    assert process.wait(60) == 0


def client(served, root):
    env = served["env"]
    return boto3.client("s3", endpoint_url=f"https://127.0.0.1:{served['port']}", verify=str(root), region_name="us-east-1",
                        aws_access_key_id=env["AWS_ACCESS_KEY_ID"], aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
                        config=Config(retries={"max_attempts": 0}, signature_version="s3v4"))


def shown(served):
    """The certificate that a connection that comes is shown."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", served["port"]), timeout=30) as plain:
        with context.wrap_socket(plain) as s:
            assert s.selected_alpn_protocol() == "http/1.1" and s.version() in ("TLSv1.2", "TLSv1.3")
            return ssl.DER_cert_to_PEM_cert(s.getpeercert(binary_form=True))


def test_clients(served):
    s3 = client(served, served["first"])
    s3.create_bucket(Bucket="secret")
    data = bytes(range(256)) * (9 << 12)
    s3.put_object(Bucket="secret", Key="k", Body=data)
    assert s3.get_object(Bucket="secret", Key="k")["Body"].read() == data
    url = s3.generate_presigned_url("get_object", Params={"Bucket": "secret", "Key": "k"})
    argv = ["curl", "-sS", "--fail", "--http1.1", "--cacert", str(served["first"]), url]
    assert subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout == data
    # Conditions of policies see it.
    s3.put_bucket_policy(Bucket="secret", Policy="""{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
        "Action": "s3:GetObject", "Resource": "arn:aws:s3:::secret/*", "Condition": {"Bool": {"aws:SecureTransport": "true"}}}]}""")
    argv[-1] = f"https://127.0.0.1:{served['port']}/secret/k"
    assert subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout == data
    # Without TLS there is nothing to be heard.
    plain = subprocess.run(["curl", "-sS", argv[-1].replace("https", "http")], capture_output=True, timeout=60)
    assert plain.returncode != 0
    # The certificate is not that of another root.
    other, _ = certificate(served["directory"], "other")
    with pytest.raises(SSLError):
        client(served, other).list_buckets()


def replace(served, name):
    made = certificate(served["directory"], name)
    for path, to in zip(reversed(made), reversed(served["used"].values())):
        shutil.copy(path, to)
    return made[0]


def test_certificates_that_change(served):
    first = served["first"].read_text()
    assert shown(served) == first
    there = client(served, served["first"])
    there.list_buckets()
    second = replace(served, "second")
    served["process"].send_signal(signal.SIGHUP)
    eventually(lambda: shown(served) == second.read_text(), what="the second certificate")
    # A connection that is there stays.
    there.list_buckets()
    client(served, second).list_buckets()
    # What cannot be used changes nothing.
    served["used"]["pem"].write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    served["process"].send_signal(signal.SIGHUP)
    log = served["directory"] / "log"
    eventually(lambda: "the certificates stay as they are" in log.read_text(), what="a word in the log")
    assert shown(served) == second.read_text()
    # Without a signal a change is found as well.
    third = replace(served, "third")
    eventually(lambda: shown(served) == third.read_text(), what="the third certificate")


def test_handshakes_are_bounded(served):
    """Peers that say nothing, or half of it, are sent away, and others are served meanwhile."""
    silent = [socket.create_connection(("127.0.0.1", served["port"]), timeout=60) for _ in range(100)]
    for s in silent[::2]:
        s.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
    assert shown(served)
    for s in silent:
        try:
            assert s.recv(100) == b""
        except ConnectionResetError:
            pass
        s.close()


def test_files_that_do_not_fit_are_refused(served, tmp_path):
    (chain, _), (_, key) = certificate(tmp_path, "one"), certificate(tmp_path, "two")
    common = [str(BINARY), "s3", "--data-dir", str(served["data"]), "--bind", f"127.0.0.1:{free_port()}"]
    for options, text in [(["--tls-cert", chain, "--tls-key", key], "are not a certificate and its key"),
                          (["--tls-cert", tmp_path / "none", "--tls-key", key], "cannot be read"),
                          (["--tls-cert", key, "--tls-key", key], "a chain of certificates"),
                          (["--tls-cert", chain], "--tls-key")]:
        r = subprocess.run([*common, *map(str, options)], capture_output=True, text=True, timeout=60)
        assert r.returncode != 0 and text in r.stderr, (options, r.stderr)
