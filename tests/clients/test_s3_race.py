"""32 clients race for a few keys through two gateways: what each was told fits into one order for each key, conditional
writes among them, and lists show what was there.

Requests are plain HTTP with presigned URLs: the installed boto3 does not know all conditions. SIPHON_TEST_LONG=1 makes
more rounds, SIPHON_TEST_SEED draws the same requests again (not their timing).
"""
import hashlib
import http.client
import os
import random
import re
import threading
import time

import pytest

from conftest import CHROOT
from s3_cluster import OwnGateway, Served
from test_s3 import Endpoint

boto3 = pytest.importorskip("boto3")

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
CLIENTS = 32
ROUNDS = 40 if LONG else 1
STEPS = 14
KEYS = [f"k{n}" for n in range(6)]
SEED = int(os.environ.get("SIPHON_TEST_SEED", random.randrange(1 << 32)))
# What a key holds when nothing is there.
NOTHING = None


class Event:
    """A request for a key with its answer. `kind` is what was asked: write, delete or read; `if_match` a tag, `*` or
    nothing; `told` what was answered."""

    def __init__(self, kind, begun, ended, tag=None, if_match=None, if_none_match=False, told=None, version=None):
        self.kind, self.begun, self.ended, self.tag = kind, begun, ended, tag
        self.if_match, self.if_none_match, self.told, self.version = if_match, if_none_match, told, version

    def __repr__(self):
        condition = f" if {self.if_match}" if self.if_match else " if nothing" if self.if_none_match else ""
        return f"{self.begun:.4f}-{self.ended:.4f} {self.kind} {self.tag or ''}{condition}: {self.told}"


DONE, REFUSED, MISSING, LOST = "done", "refused", "missing", "lost"


def after(state, e):
    """What the key holds after an event, in a list; an empty one if it cannot happen in this state."""
    if e.told == LOST:
        return [state]
    if e.kind == "read":
        return [state] if e.told == state else []
    if e.kind == "write":
        if e.if_none_match:
            if e.told == DONE:
                return [e.tag] if state is NOTHING else []
            return [state] if state is not NOTHING else []
        if e.if_match:
            if e.told == DONE:
                return [e.tag] if state == e.if_match else []
            if e.told == MISSING:
                return [state] if state is NOTHING else []
            return [state] if state not in (NOTHING, e.if_match) else []
        return [e.tag]
    # A deletion: nothing is as good as deleted, whatever the condition. A delete marker has no tag that matches.
    if e.told == DONE:
        return [NOTHING] if not e.if_match or state in (NOTHING, e.if_match) else []
    return [state] if e.if_match and state != e.if_match else []


def one_order(events, first=NOTHING):
    """Searches an order of events in which each of them can happen; the states that the key can end in."""
    events = sorted(events, key=lambda e: e.begun)
    ends, seen, stack = set(), set(), [(0, frozenset(), first)]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        at, beyond, state = node
        while at < len(events) and at in beyond:
            beyond -= {at}
            at += 1
        if at == len(events):
            ends.add(state)
            continue
        # Next is one that began before any that is left had ended.
        left = [n for n in range(at, len(events)) if n not in beyond]
        bound = min(events[n].ended for n in left)
        for n in left:
            if events[n].begun > bound:
                break
            for new in after(state, events[n]):
                stack.append((at, beyond | {n}, new))
    return ends


def could_be_listed(events, begun, ended, found):
    """A list between two moments may show this of a key: it was there at some moment of them, or is of a change that was
    under way then."""
    changes = [e for e in events if e.kind in ("write", "delete") and e.told == DONE]
    made = [e for e in changes if (e.tag if e.kind == "write" else NOTHING) == found]
    before = [float("-inf")] if found is NOTHING else []
    for since in [e.ended for e in made if e.begun <= ended] + before:
        if not any(since < e.begun and e.ended < begun for e in changes if e not in made):
            return True
    return False


def test_the_search_finds_what_is_wrong():
    write = lambda begun, ended, tag, **kw: Event("write", begun, ended, tag, told=kw.pop("told", DONE), **kw)
    read = lambda begun, ended, found: Event("read", begun, ended, told=found)
    assert one_order([write(0, 1, "a"), read(2, 3, "a")]) == {"a"}
    assert not one_order([write(0, 1, "a"), read(2, 3, NOTHING)])
    assert one_order([write(0, 3, "a"), read(1, 2, NOTHING), read(2.5, 4, "a")]) == {"a"}
    assert not one_order([write(0, 9, "a"), read(1, 2, "a"), read(3, 4, NOTHING)])
    assert one_order([write(0, 9, "a"), write(0, 9, "b")]) == {"a", "b"}
    both = [write(0, 9, "a", if_none_match=True), write(0, 9, "b", if_none_match=True)]
    assert not one_order(both)
    both[1].told = REFUSED
    assert one_order(both) == {"a"}
    assert not one_order([write(0, 1, "a"), write(2, 3, "b", if_match="x"), read(4, 5, "b")])
    assert one_order([write(0, 1, "a"), Event("delete", 2, 3, told=DONE), read(4, 5, NOTHING)]) == {NOTHING}
    changes = [write(0, 1, "a"), write(2, 3, "b")]
    assert could_be_listed(changes, 4, 5, "b") and could_be_listed(changes, 2.5, 5, "a")
    assert not could_be_listed(changes, 4, 5, "a") and not could_be_listed(changes, 4, 5, NOTHING)
    assert could_be_listed(changes, 0, 0.5, NOTHING) and not could_be_listed(changes, 0, 1.5, "b")


class Client:
    """One that asks for this and that, with a connection of its own."""

    def __init__(self, endpoint, urls, bucket, seed):
        self.urls, self.bucket, self.random = urls, bucket, random.Random(seed)
        self.http = http.client.HTTPConnection(endpoint.url.removeprefix("http://"), timeout=120)
        self.last, self.events, self.lists = {}, {k: [] for k in KEYS}, []
        self.wrong = None

    def ask(self, method, url, body=None, headers={}):
        self.http.request(method, url, body, headers)
        answer = self.http.getresponse()
        return answer, answer.read()

    def change(self, kind, key):
        body, headers, tag, kw = None, {}, None, {}
        if kind == "write":
            body = self.random.randbytes(self.random.choice([10, 3000]))
            tag = hashlib.md5(body).hexdigest()
        condition = self.random.random()
        if condition < 0.35:
            # What is there, or was until another client came.
            self.read(key)
        if condition < 0.35 and self.last[key]:
            kw["if_match"] = self.last[key]
            headers["If-Match"] = f'"{kw["if_match"]}"'
        elif condition < 0.6 and kind == "write":
            kw["if_none_match"] = True
            headers["If-None-Match"] = "*"
        begun = time.monotonic()
        answer, text = self.ask("PUT" if kind == "write" else "DELETE", self.urls[kind, key], body, headers)
        ended = time.monotonic()
        told = {200: DONE, 204: DONE, 412: REFUSED, 404: MISSING}.get(answer.status)
        if answer.status == 409 and b"ConditionalRequestConflict" in text:
            # Other changes came first, and nothing was done.
            told = LOST
        assert told, (kind, key, kw, answer.status, text)
        if told == DONE and kind == "write":
            assert answer.headers["ETag"] == f'"{tag}"'
            self.last[key] = tag
        self.events[key].append(Event(kind, begun, ended, tag, told=told, version=answer.headers.get("x-amz-version-id"), **kw))

    def read(self, key):
        begun = time.monotonic()
        answer, text = self.ask("GET", self.urls["read", key])
        ended = time.monotonic()
        found = NOTHING
        if answer.status == 200:
            found = hashlib.md5(text).hexdigest()
            assert answer.headers["ETag"] == f'"{found}"', "a tag is not that of the content"
        else:
            assert answer.status == 404, (answer.status, text)
        self.last[key] = found
        self.events[key].append(Event("read", begun, ended, told=found))

    def list(self):
        begun = time.monotonic()
        answer, text = self.ask("GET", self.urls["list", None])
        ended = time.monotonic()
        assert answer.status == 200, (answer.status, text)
        found = re.findall(r"<Key>([^<]*)</Key>.*?<ETag>(?:&quot;|&#34;|\")([0-9a-f]{32})", text.decode(), re.S)
        keys = [k for k, _ in found]
        assert keys == sorted(set(keys)) and text.count(b"<Key>") == len(keys), text
        self.lists.append((begun, ended, dict(found)))

    def work(self):
        try:
            for _ in range(STEPS):
                key = self.random.choice(KEYS)
                what = self.random.random()
                if what < 0.40:
                    self.change("write", key)
                elif what < 0.60:
                    self.change("delete", key)
                elif what < 0.88:
                    self.read(key)
                else:
                    self.list()
        except BaseException as e:
            self.wrong = e
        finally:
            self.http.close()


@pytest.fixture(scope="module")
def gateways(siphon_factory):
    served = Served(siphon_factory)
    second = OwnGateway(served.conf, threads=1)
    keys = served.access, served.secret
    yield [Endpoint(served.url, *keys), Endpoint(second.url, *keys)]
    second.stop()
    served.stop()


def presigned(endpoint, bucket):
    s3 = endpoint.client()
    calls = {"write": "put_object", "delete": "delete_object", "read": "get_object"}
    sign = lambda call, **kw: s3.generate_presigned_url(call, Params={"Bucket": bucket, **kw}, ExpiresIn=3600).removeprefix(endpoint.url)
    urls = {(kind, key): sign(call, Key=key) for kind, call in calls.items() for key in KEYS}
    urls["list", None] = sign("list_objects_v2")
    return urls


@pytest.mark.parametrize("versioning", [False, True], ids=["plain", "versioned"])
def test_racing_clients_see_one_order(gateways, versioning):
    print(f"SIPHON_TEST_SEED={SEED}")
    counts = {}
    for n in range(ROUNDS):
        bucket = f"{'versioned' if versioning else 'plain'}-{n}"
        s3 = gateways[0].client()
        s3.create_bucket(Bucket=bucket)
        if versioning:
            s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
            assert gateways[1].client().get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
        urls = [presigned(g, bucket) for g in gateways]
        clients = [Client(gateways[c % 2], urls[c % 2], bucket, SEED * 1_000_003 + n * 101 + c) for c in range(CLIENTS)]
        threads = [threading.Thread(target=c.work) for c in clients]
        for t in threads:
            t.start()
        for t in threads:
            t.join(300)
            assert not t.is_alive(), "a client waits"
        for c in clients:
            if c.wrong:
                raise c.wrong
        judge(gateways, bucket, clients, versioning)
        for c in clients:
            for e in (e for events in c.events.values() for e in events):
                name = e.kind + (" if-match" if e.if_match else " if-none-match" if e.if_none_match else "")
                told = e.told if e.kind != "read" else "read"
                counts[name, told] = counts.get((name, told), 0) + 1
    print(counts)
    # The race was one: conditions held and did not hold.
    for condition in ("if-match", "if-none-match"):
        for told in (DONE, REFUSED):
            assert any(n for (name, was), n in counts.items() if name.endswith(f" {condition}") and was == told), counts


def judge(gateways, bucket, clients, versioning):
    last = Client(gateways[1], presigned(gateways[1], bucket), bucket, 0)
    for key in KEYS:
        # What is there in the end is an event as well.
        last.read(key)
    last.list()
    everyone = [*clients, last]
    for key in KEYS:
        events = [e for c in everyone for e in c.events[key]]
        if not one_order(events):
            print(*sorted(events, key=lambda e: e.begun), sep="\n")
            pytest.fail(f"{bucket}/{key}: what was told fits into no order; SIPHON_TEST_SEED={SEED}")
        for begun, ended, listed in (found for c in everyone for found in c.lists):
            shown = listed.get(key, NOTHING)
            assert could_be_listed(events, begun, ended, shown), (SEED, bucket, key, begun, ended, shown, *events)
    if versioning:
        # Each version that was made is there, and no other: none of a write that was refused, in particular.
        s3 = gateways[0].client()
        found, markers = {}, set()
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            found.update({(v["Key"], v["VersionId"]): v["ETag"].strip('"') for v in page.get("Versions", [])})
            markers |= {(m["Key"], m["VersionId"]) for m in page.get("DeleteMarkers", [])}
        made = {(k, e.version): e.tag for c in clients for k, events in c.events.items() for e in events if e.kind == "write" and e.told == DONE}
        assert found == made
        named = {(k, e.version) for c in clients for k, events in c.events.items() for e in events if e.kind == "delete" and e.told == DONE}
        assert markers <= named
