"""Placement groups dealt out to OSDs, so that what each of them leads is not up to chance.

A share is one of each OSD. So who has more of his objects on one of them than others have gets another part of what all have together, and a
benchmark that compares totals would show where chance has put objects.
"""
import json
import subprocess

from clusters import ENV, wait


def dealt(sizes, osds):
    """Groups to OSDs, so that each of these has as many objects of each kind: {group: OSD}. `sizes` has, for each group, how many it has of each kind."""
    kinds = range(max(map(len, sizes.values()), default=0))
    all = [sum(size[k] for size in sizes.values()) or 1 for k in kinds]
    # As parts of all of a kind, so that kinds count alike. Where OSDs have as much as each other, the sum of squares is least.
    parts = {g: [n / all[k] for k, n in enumerate(size)] for g, size in sizes.items()}
    led, leader = {osd: [0.0] * len(all) for osd in osds}, {}
    times = lambda a, b: sum(x * y for x, y in zip(a, b))

    def put(g, osd):
        for at, sign in ((leader.get(g), -1), (osd, 1)):
            if at is not None:
                led[at] = [had + sign * n for had, n in zip(led[at], parts[g])]
        leader[g] = osd

    def better(change, here, there):
        """Whether it is, if so much of each kind goes from one OSD to another."""
        return times(change, [b - a + n for a, b, n in zip(led[here], led[there], change)]) < -1e-12

    def improved(a):
        """Lets a group change its place, if that is better; with another one, if that is needed."""
        here = leader[a]
        for osd in osds:
            if osd != here and better(parts[a], here, osd):
                put(a, osd)
                return True
        for b, osd in leader.items():
            if osd != here and better([m - n for m, n in zip(parts[a], parts[b])], here, osd):
                put(a, osd)
                put(b, here)
                return True
        return False

    for g in sorted(parts, key=lambda g: sum(parts[g]), reverse=True):
        put(g, min(osds, key=lambda osd: times(led[osd], parts[g])))
    # The sum of squares is less each time, so this ends.
    while any([improved(g) for g in parts]):
        pass
    return leader


def orders(sizes, osds, size):
    """OSDs of each group, so many, its leader first. When one is gone, what it led is dealt out over the others, too."""
    if size == 0:
        return {g: [] for g in sizes}
    leader, found = dealt(sizes, osds), {}
    for osd in osds:
        led = {g: n for g, n in sizes.items() if leader[g] == osd}
        found |= {g: [osd, *rest] for g, rest in orders(led, [other for other in osds if other != osd], size - 1).items()}
    return found


def deal_out(cluster, pool, sizes):
    """Lets each OSD lead as many of a pool's objects, of each kind. `sizes` are by the groups' names."""
    pools = json.loads(cluster.ceph("osd", "pool", "ls", "detail", "-f", "json"))
    size = next(p["size"] for p in pools if p["pool_name"] == pool)
    wanted = orders(sizes, list(range(cluster.osds)), size)
    lines = [f"osd pg-upmap {pgid} {' '.join(map(str, osds))}" for pgid, osds in wanted.items()]
    # One client for all of them.
    subprocess.run(["ceph", "-c", str(cluster.conf)], input="\n".join(lines) + "\n", text=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    wait("groups dealt out", lambda: all(g["acting"] == wanted[g["pgid"]] for g in groups(cluster, pool)) and cluster.clean())


def groups(cluster, pool):
    """What `ceph pg ls-by-pool` says of a pool's groups."""
    return json.loads(cluster.ceph("pg", "ls-by-pool", pool, "-f", "json"))["pg_stats"]
