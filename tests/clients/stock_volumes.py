"""Stock's manager module `volumes` outside of a manager: what it answers on a cluster is what ours must answer.

The module's files are those of the Debian package ceph-mgr-modules-core. Of the manager they need the maps, commands for
the monitors, and a connection.
"""
import json
import sys
import types
from pathlib import Path

import rados

MODULES = Path("/usr/share/ceph/mgr")


def there():
    return (MODULES / "volumes/module.py").exists()


def fake_manager():
    """What the manager's program has built in."""
    module = types.ModuleType("ceph_module")
    for name in ("BaseMgrModule", "BaseMgrStandbyModule", "BasePyCRUSH", "BasePyOSDMap", "BasePyOSDMapIncremental"):
        setattr(module, name, type(name, (), {"__init__": lambda self, *args: None}))
    sys.modules["ceph_module"] = module
    sys.path.insert(0, str(MODULES))


class Manager:
    """As much of a manager as the module asks for."""

    max_concurrent_clones = 4
    snapshot_clone_delay = 0

    class ClusterLogPrio:
        WARN = 2

    def __init__(self, conf):
        self.rados = rados.Rados(conffile=str(conf))
        self.rados.connect(timeout=60)

    def mon_command(self, command, inbuf=None):
        code, out, text = self.rados.mon_command(json.dumps(command), (inbuf or "").encode())
        return code, out.decode(), text

    def check_mon_command(self, command):
        code, out, text = self.mon_command(command)
        assert code == 0, f"{command}: {code} {text}"
        return code, out, text

    def get(self, what):
        prefix = {"fs_map": "fs dump", "osd_map": "osd dump", "mon_map": "mon dump", "df": "df"}[what]
        return json.loads(self.check_mon_command({"prefix": prefix, "format": "json"})[1])

    def get_module_option(self, name):
        return getattr(self, name)

    def cluster_log(self, *args):
        pass

    def _ceph_register_client(self, addrs):
        pass

    def _ceph_unregister_client(self, addrs):
        pass


class Volumes:
    """The module, which answers commands: errno, data and text."""

    def __init__(self, conf):
        fake_manager()
        from volumes.fs.volume import VolumeClient
        from volumes.module import Module
        self.manager = Manager(conf)
        self.module = Module.__new__(Module)
        self.module.vc = VolumeClient(self.manager)

    def __call__(self, prefix, **args):
        code, out, text = self.module.handle_command("", {"prefix": prefix, **args})
        return -code, out, text

    def close(self):
        self.module.vc.shutdown()


if __name__ == "__main__":
    # A process of its own: its threads never end.
    volumes = Volumes(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = volumes(**json.loads(line))
        except Exception as e:
            answer = [22, "", f"{type(e).__name__}: {e}"]
        print(json.dumps(answer), flush=True)
    import os
    os._exit(0)
