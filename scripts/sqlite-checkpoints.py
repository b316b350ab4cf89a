"""sqlite-checkpoints.py MOUNTPOINT SOCKET COUNT: the work of sqlite-checkpoints.sh, which see."""

import http.client
import json
import mmap
import os
import random
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import time

RING = 200  # rows of a database: transaction n writes row n % RING
MODES = ("wal", "delete")


class Daemon(http.client.HTTPConnection):
    """The control API."""

    def __init__(self, path):
        super().__init__("rewindfs", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)

    def call(self, path, **request):
        self.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
        answer = self.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {body.decode()}")
        return json.loads(body)


def connect(path, mode):
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute(f"PRAGMA journal_mode={mode}")
    db.execute("PRAGMA synchronous=FULL")
    return db


def make(path, mode):
    db = connect(path, mode)
    db.execute("CREATE TABLE ring(i INTEGER PRIMARY KEY, n INTEGER, pad BLOB)")
    db.execute("CREATE INDEX by_n ON ring(n)")
    db.execute("CREATE TABLE total(n INTEGER)")
    db.execute("INSERT INTO total VALUES(0)")
    db.close()


def write(path, mode, done, slot):
    """Commits transactions for ever; done[slot] is the number of the last one whose COMMIT has returned."""
    db = connect(path, mode)
    db.execute("PRAGMA wal_autocheckpoint=40")
    db.execute("PRAGMA cache_size=10")  # so that large transactions reach the file before they commit
    rnd = random.Random(slot)
    n = 0
    while True:
        n += 1
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE total SET n=?", (n,))
        pad = rnd.randbytes(rnd.choice((10, 500, 3000)))
        db.execute("INSERT OR REPLACE INTO ring VALUES(?,?,?)", (n % RING, n, pad))
        if n % 25 == 0:  # a large one
            db.execute("UPDATE ring SET pad=randomblob(length(pad))")
        db.execute("COMMIT")
        done[slot] = n


def check(path, before, after):
    """Says what is wrong with a database that had before transactions, and at most one more than after; "" is nothing."""
    db = sqlite3.connect(path, timeout=10)
    try:
        verdict = db.execute("PRAGMA integrity_check").fetchone()[0]
        total = db.execute("SELECT n FROM total").fetchone()[0]
        have = [n for n, in db.execute("SELECT n FROM ring ORDER BY n")]
    except sqlite3.Error as e:
        return f"{path}: {e}"
    finally:
        db.close()
    if verdict != "ok":
        return f"{path}: integrity_check says {verdict}"
    if not before <= total <= after + 1:
        return f"{path} has {total} transactions; {before} were committed before the checkpoint, {after} after it"
    if have != list(range(max(1, total - RING + 1), total + 1)):
        return f"{path}: of {total} transactions some are missing"
    return ""


def main():
    mnt, sock, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    daemon = Daemon(sock)
    done = memoryview(mmap.mmap(-1, 8 * len(MODES))).cast("Q")  # whole numbers; struct.pack_into writes zeros first
    for mode in MODES:
        make(f"{mnt}/{mode}.db", mode)
    writers = []
    for slot, mode in enumerate(MODES):
        pid = os.fork()
        if pid == 0:
            try:
                write(f"{mnt}/{mode}.db", mode, done, slot)
            finally:
                os._exit(1)
        writers.append(pid)
    seen = lambda: tuple(done)
    rnd = random.Random(1)
    taken = []
    start = time.time()
    while len(taken) < count:
        before = seen()
        at = daemon.call("/v1/checkpoint")
        taken.append((at["id"], before, seen()))
        if rnd.random() < 0.5:
            time.sleep(rnd.random() / 100)  # not in step with the writers
        for pid in writers:
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise SystemExit("a writer ended")
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    took = time.time() - start
    print(f"{count} checkpoints in {took:.0f} s, while {sum(seen())} transactions committed", flush=True)

    hot, held, bad = dict.fromkeys(MODES, 0), 0, []

    def wrong(where, id, why):
        if why:
            bad.append(why)
            print(f"checkpoint {id}, {where}: {why}", file=sys.stderr, flush=True)
        return bool(why)

    tmp = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    for id, before, after in taken:
        for slot, mode in enumerate(MODES):
            for suffix in ("", "-wal", "-journal"):
                name = f"{mode}.db{suffix}"
                try:
                    shutil.copyfile(f"{mnt}/.rewind/checkpoints/{id}/{name}", f"{tmp}/{name}")
                    hot[mode] += bool(suffix) and os.path.getsize(f"{tmp}/{name}") > 0
                except FileNotFoundError:
                    pass
            if wrong("copied out", id, check(f"{tmp}/{mode}.db", before[slot], after[slot])):
                keep = tempfile.mkdtemp(prefix="sqlite-wrong-")
                print(f"its files are in {keep}: {sorted(os.listdir(tmp))}", file=sys.stderr)
                shutil.copytree(tmp, keep, dirs_exist_ok=True)
        for name in os.listdir(tmp):
            os.unlink(f"{tmp}/{name}")
    os.rmdir(tmp)
    print(f"copied out: {len(bad)} wrong; {hot['delete']} rollback journals and {hot['wal']} WALs were in use", flush=True)

    daemon.close()  # the daemon does not keep an idle connection for ever
    if len(taken) <= 2000:
        rnd.shuffle(taken)
    else:
        taken.reverse()  # a jump costs the size of the change
    start = time.time()
    for id, before, after in taken:
        daemon.call("/v1/rollback", ref=id, files_only=True)
        for slot, mode in enumerate(MODES):
            held += not wrong("rolled back", id, check(f"{mnt}/{mode}.db", before[slot], after[slot]))
    print(f"{len(taken)} rollbacks in {time.time() - start:.0f} s: {held} databases of {len(taken) * len(MODES)} are right", flush=True)
    if bad:
        raise SystemExit(f"{len(bad)} wrong")


main()
