"""The demo family's files are those that upstream's exporter wrote from the same checkpoint and adapters."""

from __future__ import annotations

import hashlib

import pytest

# Taken from files that `needle build` of cactus-needle 3.2.8 wrote (OpenBLAS 0.3.31 on an AVX2 machine).
UPSTREAM_SHA256 = {
    "base": "b52b179ac0be7ff5fcb499838b01760330c084f77b16f8a43bc8d40dd32b813e",
    "calendar": "263f14ed19d33009df32ca244e0562c053d4287afb238bff1933977e9855ea3a",
    "home": "1cd4a09804652282b37f9a0fd578fbd46a3d10d5ed60d9a3442e636571fc84e6",
    "kitchen": "b55806298545ed2a417e4ead608d6df8f1c20dbdc7568237a8a4e40a72fb290e",
    "media": "2a70577af5085dfde02f93020159b6fdda598c343028650feca1629459331f97",
    "router": "2239ac13b5bccade56287789de9c37057ee526bb3d5420a87733004fa602ea84",
}


@pytest.mark.parametrize("member", sorted(UPSTREAM_SHA256))
def test_the_exported_member_is_upstreams_file_byte_for_byte(demo_family, member):
    data = (demo_family.folder / f"{member}.cact").read_bytes()
    assert hashlib.sha256(data).hexdigest() == UPSTREAM_SHA256[member]
