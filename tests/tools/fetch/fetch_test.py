#!/usr/bin/env python3
"""`./weft fetch` with a server of the test's own: good, broken off, wrong, gone, interrupted."""
import contextlib
import fcntl
import hashlib
import http.server
import io
import os
import pathlib
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import unittest.mock

sys.path.insert(0, "tests/tools")
from cases import ToolTest, main
from tools.fetch import fetch
from tools.fetch.fetch import SETS, File, Set

# Runs the tool with small sets in place of the real ones: argv is their text, then the arguments.
WITH_SETS = """
import sys
from tools import command
from tools.fetch import fetch
fetch.SETS = eval(sys.argv.pop(1), {"Set": fetch.Set, "File": fetch.File})
fetch._PATIENCE = 2
command.run("fetch", fetch.main)
"""

IMAGES, LABELS = bytes(range(251)) * 4000, b"labels"


def described(name, data):
    return File(name, len(data), hashlib.sha256(data).hexdigest())


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends server.files; of a file in server.cut only that many bytes in all, and then it breaks off,
    or with server.hold waits."""

    def do_GET(self):
        begin, server = 0, self.server
        server.asked.append((self.path, self.headers.get("Range")))
        data = server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        if server.ranges and (found := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))):
            begin = int(found[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin + server.shift}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", len(data) - begin)
        self.end_headers()
        end = server.cut.get(self.path, len(data))
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data[begin:end])
            if end < len(data) and server.hold:
                self.wfile.flush()
                server.held.set()
                server.go_on.wait(20)

    def log_message(self, *_):
        pass


class Fetch(ToolTest):
    tool = "tools/fetch/fetch"

    def setUp(self):
        super().setUp()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.files = {"/images.gz": IMAGES, "/labels.gz": LABELS}
        self.server.asked, self.server.cut, self.server.ranges = [], {}, True
        self.server.hold, self.server.shift = False, 0
        self.server.held, self.server.go_on = threading.Event(), threading.Event()
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.addCleanup(self.server.go_on.set)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        files = [described("images.gz", IMAGES), described("labels.gz", LABELS)]
        self.sets = {"digits": Set("Digits", [self.url], files, files, "digits", "mlp")}

    def start(self, *arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-c", WITH_SETS, repr(self.sets), *arguments], cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.getcwd(), "http_proxy": "", "HTTP_PROXY": ""},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)

    def fetch(self, *arguments, status=0, **options):
        process = self.start(*arguments, **options)
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, said)
        self.assertNotIn("Traceback", said)
        return said

    def files_in(self, folder):
        return {each.name: each.read_bytes() for each in (self.folder / folder).iterdir()}

    def check_whole(self, folder="digits"):
        self.assertEqual(self.files_in(folder), {"images.gz": IMAGES, "labels.gz": LABELS})

    def test_downloads_what_is_missing_and_nothing_twice(self):
        said = self.fetch("digits")
        self.assertEqual(said, f"fetch: Digits: 2 files, 1.0 MB, from {self.url} into digits\n"
                               "fetch: Digits is in digits, whole\n"
                               "fetch: ./weft run mlp --data digits\n")
        self.check_whole()
        self.assertEqual(len(self.server.asked), 2)
        self.assertIn("Digits is in digits already, whole\n", self.fetch("digits"))
        self.assertEqual(len(self.server.asked), 2)
        (self.folder / "digits/labels.gz").unlink()
        self.assertIn("1 file, 0.0 MB", self.fetch("digits"))
        self.check_whole()
        self.assertEqual(self.server.asked[2:], [("/labels.gz", None)])
        self.fetch("digits", "some/where/else", "--from", self.url + "/")
        self.check_whole("some/where/else")

    def test_goes_on_where_a_connection_broke(self):
        self.server.cut = {"/images.gz": 300_000}
        said = self.fetch("digits", status=2)
        self.assertIn(f"fetch: error: {self.url}/images.gz: the connection broke after 300000 of "
                      "1004000 bytes: it ended; 0.3 MB are kept, ", said)
        self.assertIn("kept, and the same command goes on from there", said)
        self.assertEqual(self.files_in("digits"), {"images.gz.part": IMAGES[:300_000]})
        self.server.cut = {}
        self.fetch("digits")
        self.check_whole()
        self.assertEqual(self.server.asked[1], ("/images.gz", "bytes=300000-"))

    def test_begins_anew_where_the_server_knows_no_parts(self):
        self.server.cut = {"/images.gz": 300_000}
        self.fetch("digits", status=2)
        self.server.cut, self.server.ranges = {}, False
        self.fetch("digits")
        self.check_whole()

    def test_refuses_another_part_than_the_one_asked_for(self):
        self.server.cut = {"/images.gz": 300_000}
        self.fetch("digits", status=2)
        self.server.cut, self.server.shift = {}, 7
        self.assertIn("sends another part of the file", self.fetch("digits", status=2))

    def test_goes_on_after_an_interruption(self):
        self.server.cut, self.server.hold = {"/images.gz": 600_000}, True
        process = self.start("digits")
        self.assertTrue(self.server.held.wait(20))
        part = self.folder / "digits/images.gz.part"
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (part.exists() and part.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("interrupted; the same command goes on from here", said)
        self.assertNotIn("Traceback", said)
        self.assertEqual(os.listdir(self.folder / "digits"), ["images.gz.part"])
        self.server.cut, self.server.hold = {}, False
        self.fetch("digits")
        self.check_whole()
        self.assertRegex(self.server.asked[1][1] or "", r"bytes=\d{5,}-")

    def test_goes_on_after_being_killed(self):
        self.server.cut, self.server.hold = {"/images.gz": 600_000}, True
        process = self.start("digits")
        self.assertTrue(self.server.held.wait(20))
        process.kill()
        process.communicate(timeout=20)
        self.server.cut, self.server.hold = {}, False
        self.fetch("digits")
        self.check_whole()

    def test_a_server_that_falls_silent(self):
        self.server.cut, self.server.hold = {"/images.gz": 100}, True
        said = self.fetch("digits", status=2)
        self.assertIn("the connection broke after 100 of 1004000 bytes: timed out", said)

    def test_refuses_wrong_bytes(self):
        for wrong, why in ((IMAGES[:-1] + b"x", "its SHA-256 is another"),
                           (IMAGES + b"x", "it has 1004001 bytes, not 1004000")):
            self.server.files["/images.gz"] = wrong
            said = self.fetch("digits", status=2)
            self.assertIn(f"{self.url}/images.gz: not the published file: {why}; or bring ", said)
            self.assertEqual(os.listdir(self.folder / "digits"), [])

    def test_begins_anew_where_a_part_is_wrong(self):
        for size in 500, len(IMAGES), len(IMAGES) + 1:
            self.fetch("digits")
            (self.folder / "digits/images.gz").unlink()
            (self.folder / "digits/images.gz.part").write_bytes(b"x" * size)
            self.fetch("digits")
            self.check_whole()

    def test_another_address_takes_over(self):
        self.sets["digits"] = self.sets["digits"]._replace(addresses=[self.url + "/gone", self.url])
        self.fetch("digits")
        self.check_whole()

    def test_no_network(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}"
            said = self.fetch("digits", "--from", url, status=2)
        self.assertIn(f"fetch: error: {url}/images.gz: [Errno 111] Connection refused; or bring "
                      "images.gz here in a folder D, and add --from D", said)
        self.assertIn("/gone/images.gz: the server says 404 Not Found",
                      self.fetch("digits", "--from", self.url + "/gone", status=2))
        self.assertEqual(os.listdir(self.folder / "digits"), [])

    def test_takes_a_folder_for_a_server(self):
        (self.folder / "stick").mkdir()
        (self.folder / "stick/images.gz").write_bytes(IMAGES)
        (self.folder / "stick/labels.gz").write_bytes(LABELS)
        for number, address in enumerate(("file://" + self.path("stick") + "/", self.path("stick"),
                                          "stick/")):
            self.fetch("digits", str(number), "--from", address)
            self.check_whole(str(number))
        self.assertEqual(self.server.asked, [])

    def test_an_address_that_is_none(self):
        said = self.fetch("digits", "--from", "nowhere", status=2)
        self.assertIn(f"fetch: error: file://{self.folder.resolve()}/nowhere/images.gz: ", said)
        for address, why in (("", "got nothing, expected an address or a folder"),
                             ("file://stick", "file://stick has no whole path: file:///FOLDER")):
            self.assertIn(why, self.fetch("digits", "--from", address, status=2))
        self.assertIn("unknown url type", self.fetch("digits", "--from", "x://y", status=2))
        (self.folder / "loop").symlink_to("loop")
        said = self.fetch("digits", "--from", "loop", status=2)
        self.assertIn("Too many levels of symbolic links", said)
        self.assertNotIn("Traceback", said)
        self.assertEqual(self.server.asked, [])

    def test_leaves_files_that_it_does_not_know_alone(self):
        (self.folder / "digits").mkdir()
        (self.folder / "digits/labels.gz").write_bytes(b"mine!!")
        said = self.fetch("digits", status=2)
        self.assertIn("digits/labels.gz is another file than the published one", said)
        self.assertEqual(self.files_in("digits"), {"labels.gz": b"mine!!"})
        self.assertEqual(self.server.asked, [])

    def test_one_at_a_time(self):
        (self.folder / "digits").mkdir()
        with open(self.folder / "digits/images.gz.part", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assertIn("another process downloads digits/images.gz.part",
                          self.fetch("digits", status=2))

    def test_one_at_a_time_while_it_unpacks(self):
        def unpack(archive, _, folder):
            with archive.open("rb") as file, self.assertRaises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unpacked.append(folder)
        unpacked = []
        archive = described("images.gz", IMAGES)
        one = Set("Set", [self.url], [archive], [described("batch.bin", b"1")], "set", "cnn")
        with unittest.mock.patch.object(fetch, "unpack", unpack), \
                contextlib.redirect_stdout(io.StringIO()):
            fetch.fetch(one, self.folder / "set", one.addresses)
        self.assertEqual(unpacked, [self.folder / "set"])

    def test_a_file_that_another_process_finished_with_is_opened_anew(self):
        path = self.folder / "a.part"
        def flock(file, how):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino and not done:
                path.rename(self.folder / "a")
                done.append(True)
        done = []
        with unittest.mock.patch.object(fetch.fcntl, "flock", flock), fetch.locked(path) as part:
            part.write(b"new")
        self.assertEqual(self.files_in("."), {"a": b"", "a.part": b"new"})

    def test_unpacks_an_archive(self):
        batches = {f"batch_{i}.bin": bytes([i]) * 3000 for i in range(3)}
        archive = tar_of({"batches/readme.html": b"text", "../batch_9.bin": b"",
                          **{f"batches/{name}": data for name, data in batches.items()}})
        self.server.files["/set.tar.gz"] = archive
        files = [described(name, data) for name, data in batches.items()]
        self.sets = {"set": Set("Set", [self.url], [described("set.tar.gz", archive)], files, "set", "cnn")}
        self.server.cut = {"/set.tar.gz": 100}
        self.fetch("set", status=2)
        self.server.cut = {}
        self.assertIn("1 file, 0.0 MB", self.fetch("set"))
        self.assertEqual(self.files_in("set"), batches)
        self.assertIn("already, whole", self.fetch("set"))
        # Interrupted while it unpacked: nothing is downloaded again.
        (self.folder / "set/batch_1.bin").unlink()
        (self.folder / "set/batch_2.bin.part").write_bytes(b"some")
        (self.folder / "set/batch_2.bin").unlink()
        (self.folder / "set/set.tar.gz.part").write_bytes(archive)
        asked = len(self.server.asked)
        self.fetch("set")
        self.assertEqual(self.files_in("set"), batches)
        self.assertEqual(len(self.server.asked), asked)
        # The archive is the published one, but what the table says of its files is wrong.
        self.sets["set"] = self.sets["set"]._replace(files=[*files, described("batch_7.bin", b"x")])
        self.assertIn("set.tar.gz.part lacks batch_7.bin", self.fetch("set", status=2))
        wrong = files[0]._replace(sha256="0" * 64)
        self.sets["set"] = self.sets["set"]._replace(files=[wrong])
        (self.folder / "set/batch_0.bin").unlink()
        self.assertIn("batch_0.bin in it is not the published file", self.fetch("set", status=2))

    def test_a_full_disk_or_a_file_in_the_way(self):
        (self.folder / "digits").write_bytes(b"")
        self.assertIn("fetch: error: cannot make the folder digits: File exists",
                      self.fetch("digits", status=2))

    def test_a_file_that_cannot_be_written_is_no_broken_connection(self):
        def allow_less():
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
        self.sets["digits"] = self.sets["digits"]._replace(addresses=[self.url, self.url + "/other"])
        said = self.fetch("digits", status=2, preexec_fn=allow_less)
        self.assertTrue(said.endswith("fetch: error: cannot write digits/images.gz.part: File too "
                                      "large\n"), said)
        self.assertEqual(len(self.server.asked), 1)

    def test_usage(self):
        for arguments, expected in (([], "arguments are required: NAME"),
                                    (["minst"], "invalid choice: 'minst'"),
                                    (["mnist", "--form", "x"], "unknown option --form; did you mean --from?"),
                                    (["mnist", "a", "b"], "unexpected argument 'b'")):
            self.check_refusal(arguments, expected)

    def test_the_real_sums_are_those_of_the_published_files(self):
        """Debian's package has the same compressed bytes, but for the name and the time in gzip's header."""
        debian = pathlib.Path("/usr/share/datasets/fashion-mnist")
        if not debian.exists():
            self.skipTest("dataset-fashion-mnist is missing")
        times = {"train": 1504176606, "t10k": 1504176627}
        for each in SETS["fashion-mnist"].downloads:
            data = (debian / each.name).read_bytes()
            name = each.name.removesuffix(".gz")
            header = b"\x1f\x8b\x08\x08" + struct.pack("<I", times[name.split("-")[0]]) + b"\0\3"
            self.server.files["/" + each.name] = header + name.encode() + b"\0" + data[10:]
        self.sets = SETS
        self.fetch("fashion-mnist", "--from", self.url)
        self.assertEqual(len(self.server.asked), 4)
        self.assertIn("already, whole", self.fetch("fashion-mnist"))


if __name__ == "__main__":
    main()
