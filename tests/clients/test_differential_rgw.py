"""Random calls of the gateway's index class on a stock OSD and on ours must give equal answers, and leave
equal rows.

Heavy, as test_differential.py, whose clusters it has; SIPHON_TEST_DIFFERENTIAL=1 runs it.
"""
import json
import os
import random
import struct
import uuid

import pytest
import rados

from test_differential import stock, subject  # noqa: F401 (fixtures)

CALLS = int(os.environ.get("SIPHON_DIFFERENTIAL_CLASS_CALLS", "3000"))
SEEDS = os.environ.get("SIPHON_DIFFERENTIAL_SEEDS", "1,2,3").split(",")

pytestmark = pytest.mark.skipif(os.environ.get("SIPHON_TEST_DIFFERENTIAL") != "1", reason="heavy; SIPHON_TEST_DIFFERENTIAL=1 runs it")


# --- encoding: by hand, not by code of ours ---

def num(form, *values):
    return struct.pack("<" + form, *values)


def text(s):
    s = s if isinstance(s, bytes) else s.encode()
    return num("I", len(s)) + s


def env(version, compat, *parts):
    body = b"".join(parts)
    return num("BBI", version, compat, len(body)) + body


def packed(n):
    if n < 0x80:
        return num("B", n)
    return num("BB", 0x81, n) if n < 0x100 else num("BH", 0x82, n)


def key(name, instance=""):
    return env(1, 1, text(name), text(instance))


def time(sec):
    return num("II", sec, 7)


def meta(size, category=1):
    return env(7, 3, num("BQ", category, size), time(1000 + size), text("etag"), text("owner"), text("name"),
               text("type"), num("Q", size), text(""), text(""), num("B", 0))


def ver(epoch):
    return env(1, 1, packed(5), packed(epoch))


class Calls:
    """Random calls on one index. Changes are finished at once, and not logged: then no row has a time or a
    version of the OSD's own."""

    NAMES = ["a", "b/1", "b/2", "b/c/3", "z", "\u00e4", "\ue000x"]
    # As many as make a list pass over more rows than one call looks at.
    INSTANCES = ["", "", "i1", "i2", "i3", "null", *(f"v{n}" for n in range(9))]

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tag = 0

    def name(self):
        return self.random.choice(self.NAMES)

    def instance(self):
        return self.random.choice(self.INSTANCES)

    def change(self):
        name, instance, r = self.name(), self.instance(), self.random
        self.tag += 1
        tag, op, epoch = f"t{self.tag}", r.choice([0, 0, 0, 1, 2]), r.randrange(200)
        removed = [key(self.name(), self.instance()) for _ in range(r.choice([0, 0, 0, 1]))]
        yield "bucket_prepare_op", env(7, 5, num("B", op), text(tag), text(""), num("B", 0), key(name, instance), num("HI", 0, 0))
        tag = tag if r.random() < 0.95 else "unknown"
        yield "bucket_complete_op", env(
            9, 7, num("BQ", op, epoch), meta(r.randrange(9000)), text(tag), text(""), num("I", len(removed)),
            *removed, ver(epoch), num("B", 0), key(name, instance), num("HI", 0, 0))
        if tag == "unknown":
            yield "bucket_complete_op", env(
                9, 7, num("BQ", 2, 0), meta(1), text(f"t{self.tag}"), text(""), num("I", 0), ver(0), num("B", 0),
                key(name, instance), num("HI", 0, 0))

    def link(self):
        r = self.random
        marker = r.random() < 0.3
        yield "bucket_link_olh", env(
            5, 1, key(self.name(), self.instance()), text("olh" if r.random() < 0.95 else "other"), num("B", marker),
            text("op"), meta(r.randrange(100), 0 if marker else 1), num("Q", r.choice([0, 0, 0, r.randrange(1, 30)])),
            num("BH", 0, 0), num("Q", 0), r.choice([num("II", 0, 0)] * 4 + [time(1050)]), num("B", r.random() < 0.5), num("I", 0))

    def unlink(self):
        r = self.random
        yield "bucket_unlink_instance", env(
            3, 1, key(self.name(), self.instance()), text("op"), num("Q", r.choice([0, 0, 0, r.randrange(1, 30)])),
            num("BH", 0, 0), text("olh"), num("I", 0))

    def olh(self):
        r, olh = self.random, key(self.name(), "i1" if self.random.random() < 0.05 else "")
        tag = text("olh" if r.random() < 0.9 else "x")
        yield r.choice([
            ("bucket_read_olh_log", env(1, 1, olh, num("Q", r.randrange(20)), tag)),
            ("bucket_trim_olh_log", env(1, 1, olh, num("Q", r.randrange(20)), tag)),
            ("bucket_clear_olh", env(1, 1, olh, tag)),
        ])

    def marker(self):
        """Where raw rows are listed from: names, versions, heads, and nowhere. Stock lists versions again after names that come behind
        them, without end; ours does not."""
        name = self.random.choice([n for n in self.NAMES if n.isascii()]).encode()
        return self.random.choice([b"", b"", name, b"\x801000_" + name + b"\0i" + self.instance().encode(), b"\x801001_" + name])

    def read(self):
        r = self.random
        yield r.choice([
            ("bucket_list", env(6, 4, num("I", r.choice([0, 1, 2, 5, 1000])), text(r.choice(["", "", "b", "b/"])),
                                key(r.choice(["", *self.NAMES]), self.instance()), num("B", r.random() < 0.5),
                                text(r.choice(["", "/"])))),
            ("bi_list", env(1, 1, num("I", r.choice([1, 2, 5, 1000])), text(r.choice(["", "", self.name()])), text(self.marker()))),
            ("bi_get", env(1, 1, key(self.name(), self.instance()), num("B", r.randrange(5)))),
            ("bucket_check_index", b""),
        ])

    def whole(self):
        r = self.random
        yield r.choice([
            ("bucket_rebuild_index", b""),
            ("bucket_set_tag_timeout", env(1, 1, num("Q", r.randrange(100)))),
            ("bucket_init_index", b""),
            ("set_bucket_resharding", env(1, 1, env(1, 1, num("B", r.randrange(3)), text("new"), num("i", 3)))),
            ("clear_bucket_resharding", env(1, 1)),
            ("get_bucket_resharding", env(1, 1)),
            ("guard_bucket_resharding", env(1, 1, num("i", -2300))),
            (r.choice(["bucket_list", "bucket_link_olh", "bi_put", "lc_set_entry"]), r.randbytes(r.randrange(40))),
        ])

    def suggest(self):
        r, name = self.random, self.name()
        entry = env(8, 3, text(name), num("QB", 3, 1), meta(r.randrange(5000)), num("I", 0), text(""), ver(r.randrange(200)),
                    packed(3), text("tag"), text(""), num("H", 0), num("Q", 0))
        yield "dir_suggest_changes", num("B", ord(r.choice("ru"))) + entry

    def next(self):
        kinds = [self.change] * 6 + [self.link] * 4 + [self.unlink] * 2 + [self.olh] + [self.read] * 5 + [self.whole, self.suggest]
        yield from self.random.choice(kinds)()


class Index:
    """An index object of one cluster."""

    def __init__(self, conf):
        self.cluster = rados.Rados(conffile=str(conf), name="client.admin")
        self.cluster.connect(timeout=60)
        self.pool = f"classes-{uuid.uuid4().hex[:8]}"
        command = {"prefix": "osd pool create", "pool": self.pool, "pg_num": 1}
        code, _, status = self.cluster.mon_command(json.dumps(command), b"")
        assert code == 0, status
        self.io = self.cluster.open_ioctx(self.pool)

    def call(self, method, data):
        try:
            _, out = self.io.execute("index", "rgw", method, data)
        except rados.Error as e:
            return e.errno if e.errno is not None else str(e)
        return out

    def rows(self):
        """All rows of all names, a name at a time: librados gives 8 KiB of a call's answer."""
        found = {n: self.call("bi_list", env(1, 1, num("I", 1000), text(n), text(""))) for n in Calls.NAMES}
        assert all(isinstance(answer, bytes) for answer in found.values()), found
        return found

    def close(self):
        self.io.close()
        self.cluster.shutdown()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls_give_equal_answers(stock, subject, seed):  # noqa: F811
    reference, ours = Index(stock), Index(subject)
    try:
        calls, made = Calls(seed), []
        for index in (reference, ours):
            index.io.write_full("index", b"")
        while len(made) < CALLS:
            for method, data in calls.next():
                made.append((method, data))
                expected, found = reference.call(method, data), ours.call(method, data)
                assert found == expected, f"call {len(made)}: {method} {data!r}\nstock: {expected!r}\nours:  {found!r}\nbefore it: {made[-6:-1]!r}"
            expected, found = reference.rows(), ours.rows()
            assert found == expected, f"rows after call {len(made)}: {made[-6:]!r}\nstock: {expected!r}\nours:  {found!r}"
    finally:
        reference.close()
        ours.close()
