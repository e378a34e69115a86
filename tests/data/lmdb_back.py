"""lmdb_back.py IN OUT: reads a data set of weft's and writes it as OUT.lmdb and as the folder OUT."""
import io
import struct
import sys

import lmdb
from PIL import Image

samples = []
with lmdb.open(sys.argv[1], subdir=False, lock=False, readonly=True).begin() as txn:
    for index in range(txn.stat()["entries"]):
        value = txn.get(b"%08d" % index)
        label, = struct.unpack_from("<q", value)
        picture = Image.open(io.BytesIO(value[8:]))
        assert label == index - 7, (index, label)
        assert picture.getpixel((0, 0)) == index % 256, index
        samples.append((label, value[8:]))
for path, subdir in (sys.argv[2] + ".lmdb", False), (sys.argv[2], True):
    with lmdb.open(path, subdir=subdir, lock=False, map_size=1 << 40) as db:
        with db.begin(write=True) as txn:
            for index, (label, picture) in enumerate(samples):
                txn.put(b"%08d" % index, struct.pack("<q", label + 1) + picture)
