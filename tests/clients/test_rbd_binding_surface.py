"""That the tests of librbd's Python binding leave none of its methods out."""
import inspect

import pytest
from rbd_binding import CALLED, rbd

# What is called, but does its work only beside something that these tests have not.
LIMITED = {
    ("Image", "mirror_image_get_instance_id"): "a running rbd-mirror writes what it returns",
    ("RBD", "mirror_image_instance_id_list"): "likewise",
    ("MirrorImageInstanceIdIterator", "get_next_chunk"): "likewise",
    ("RBD", "mirror_peer_bootstrap_import"): "takes the token of another cluster only",
}


def methods():
    """The public methods of the binding's own classes."""
    for name, thing in vars(rbd).items():
        if inspect.isclass(thing) and thing.__module__ == "rbd" and not issubclass(thing, Exception):
            yield from ((name, method) for method in dir(thing) if not method.startswith("_"))


def test_every_method_is_called(request):
    ran = {item.originalname for item in request.session.items if item.module.__name__.startswith("test_rbd_binding_")}
    expected = set(methods())
    assert len(expected) > 150
    if len(ran) < 40 or "crc" not in CALLED:
        pytest.skip("only with all tests of the binding")
    missing = expected - CALLED["crc"]
    assert not missing, f"never called: {sorted(missing)}"
    assert set(LIMITED) <= expected
