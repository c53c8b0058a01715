"""What a confined process can and cannot do, as root and as a user without privileges, with and
without each layer.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpudojo.sandbox import confined

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these layers are Linux's")

GRADERS = Path(__file__).resolve().parents[3] / "graders"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
WHO = ("root", "nobody") if os.getuid() == 0 else ("self",)
# Machines that lack something. Where namespaces and seccomp are both missing, sockets are open, as
# is reported.
LACKING: tuple[tuple[str, ...], ...] = (
    (),
    ("landlock",),
    ("mounts",),
    ("namespaces",),
    ("seccomp",),
)
everybody = pytest.mark.parametrize("who", WHO)
every_machine = pytest.mark.parametrize(
    "without", LACKING, ids=lambda names: "-".join(names) or "all"
)

# By what is tried: a piece of code that raises, or says what it has `found`.
TRIED = {
    "root folder": (
        "import os; found = [os.path.exists(f'/etc/{n}') for n in ('passwd', 'hostname', "
        "'os-release')]"
    ),
    "hosts": "import socket; found = open('/etc/hosts').read() + socket.gethostbyname('localhost')",
    "shell": "import os; found = os.popen('no-such-program 2>/dev/null || echo none; pwd').read()",
    "solutions": f"open({str(GRADERS.parent / 'pyproject.toml')!r})",
    "change Python": "import os; open(os.__file__, 'a')",
    "scratch": "open('a', 'w').write('b'); found = open('a').read() + open('sub/file.txt').read()",
    "families": """
import socket
found = []
for family in range(64):
    for protocol in (0, 1, 15):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(family, kind, protocol).close()
                found.append(family)
            except OSError:
                pass
found = sorted(set(found))""",
    "other netlink": "import socket; socket.socket(16, socket.SOCK_RAW, 15)",
    "pair": """
import socket
a, b = socket.socketpair()
a.send(b'x')
found = b.recv(1)""",
    "loopback": """
import socket
listener = socket.create_server(('127.0.0.1', 0))
caller = socket.create_connection(listener.getsockname())
caller.send(b'x')
found = listener.accept()[0].recv(1)""",
    "memfd": "import os; os.memfd_create('x')",
    "shared memory without a file": "import mmap; mmap.mmap(-1, 4096)",
    "shared memory of /dev/zero": """
import mmap
with open('/dev/zero', 'r+b') as file:
    mmap.mmap(file.fileno(), 4096)""",
    "private memory": """
import mmap
found = len(mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))""",
    "System V": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
found = [getattr(libc, name)(*args) for name, args in (
    ("shmget", (0, 4096, 0o1600)), ("msgget", (0, 0o1600)), ("semget", (0, 1, 0o1600)))]""",
    "too large": "open('large', 'wb').write(bytes(17 << 20))",
    "too large in /dev/shm": """
for number in range(20):
    open(f'/dev/shm/{number}', 'wb').write(bytes(1 << 20))""",
    "capabilities": "import os; os.chroot('.')",
    "processes": "import __main__, os; found = [os.getpid(), __main__.forking_process]",
}


@functools.cache
def run(
    who: str, without: tuple[str, ...] = (), code: str = "", neighbour: str = ""
) -> dict[str, Any]:
    """The layers, and what came of everything that was tried."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    command = [sys.executable]
    if who == "nobody":
        python = f"/usr/bin/python3.{sys.version_info.minor}"
        readable = (
            subprocess.run(
                [*NOBODY, "test", "-r", packages[-1], "-a", "-x", python], check=False
            ).returncode
            == 0
        )
        if shutil.which("setpriv") is None or not readable:
            pytest.skip("this needs setpriv, and a Python with packages that everybody may run")
        command = [*NOBODY, python]
    paths = json.dumps([str(GRADERS), *packages])
    asked = {"code": {"code": code} if code else TRIED, "without": without, "neighbour": neighbour}
    run = subprocess.run(
        [*command, "-B", confined.__file__, paths],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=240,
    )
    assert run.stdout.startswith("{"), run.stderr[-2000:]
    found: dict[str, Any] = json.loads(run.stdout)
    if "namespaces" not in without and found["layers"]["processes"]:
        pytest.skip(f"namespaces: {found['layers']['processes']}")
    return found


def refused(text: str) -> bool:
    return text.startswith(("PermissionError", "FileNotFoundError", "OSError"))


@everybody
def test_every_layer_holds_with_and_without_privileges(who: str) -> None:
    assert {name: why for name, why in run(who)["layers"].items() if why} == {}


NAMESPACE = "this machine does not allow such a namespace (Operation not permitted)"
REASONS = {
    ("landlock",): dict.fromkeys(("files", "signals"), "py-landlock is not installed"),
    ("mounts",): {"file system": NAMESPACE},
    ("namespaces",): dict.fromkeys(("processes", "network", "scratch", "file system"), NAMESPACE),
    ("seccomp",): {"system calls": "pyseccomp is not installed"},
}


@everybody
@pytest.mark.parametrize("without", LACKING[1:], ids="-".join)
def test_what_is_missing_is_reported_with_its_reason(who: str, without: tuple[str, ...]) -> None:
    user = (
        {}
        if who == "root" or without[0] in ("landlock", "seccomp")
        else {"user": "the submission runs as the user who grades"}
    )
    assert {name: why for name, why in run(who, without)["layers"].items() if why} == REASONS[
        without
    ] | user


@everybody
@pytest.mark.parametrize(
    "without", [(), ("landlock",), ("seccomp",)], ids=lambda names: "-".join(names) or "all"
)
def test_only_python_packages_and_scratch_exist(who: str, without: tuple[str, ...]) -> None:
    """Also without Landlock."""
    found = run(who, without)["found"]
    assert found["root folder"] == "[False, False, False]"
    assert (
        found["hosts"] == "127.0.0.1 localhost\n::1 localhost\n127.0.0.1"
    )  # not the machine's own
    assert found["solutions"].startswith("FileNotFoundError")


@everybody
def test_the_evidence_of_a_release_is_covered(who: str) -> None:
    from gpudojo.grading.shipped_evidence import SHIPPED_FOLDER
    from gpudojo.sandbox.file_tree import ANSWERS

    assert str(SHIPPED_FOLDER) == ANSWERS
    code = "import email, os; found = os.listdir(os.path.dirname(email.__file__))"
    assert run(who, ("answers",), code)["found"]["code"] == "[]"
    write = "import email, os; open(os.path.dirname(email.__file__) + '/new', 'w')"
    assert "Read-only" in run(who, ("answers",), write)["found"]["code"]


@everybody
@every_machine
def test_a_copy_has_another_number_than_who_forked_it(who: str, without: tuple[str, ...]) -> None:
    """Libraries such as filelock find out by its number that a process is a copy."""
    own, forking = json.loads(run(who, without)["found"]["processes"])
    assert own != forking
    if not without:
        assert own == 1


@everybody
@every_machine
def test_a_shell_says_that_a_program_is_missing(who: str, without: tuple[str, ...]) -> None:
    assert run(who, without)["found"]["shell"].startswith("none\n/")


@everybody
@every_machine
def test_files_outside_are_neither_read_nor_changed(who: str, without: tuple[str, ...]) -> None:
    found = run(who, without)["found"]
    assert refused(found["solutions"])
    assert refused(found["change Python"])
    assert found["scratch"] == "btext"


@everybody
@every_machine
def test_socket_families_are_allowed_by_name(who: str, without: tuple[str, ...]) -> None:
    found = run(who, without)["found"]
    if without != ("seccomp",):
        own = [] if without in (("namespaces",), ("mounts",)) else [int(socket.AF_UNIX)]
        assert json.loads(found["families"]) == [
            *own,
            int(socket.AF_INET),
            int(socket.AF_INET6),
            16,
        ]
        assert refused(found["other netlink"])
    assert found["pair"] == "b'x'"
    assert found["loopback"] == "b'x'"


@pytest.fixture(scope="module")
def outside() -> Iterator[Path]:
    """A socket with a name that everybody may connect to, as those of an ssh-agent or of Docker may
    be.
    """
    folder = Path(tempfile.mkdtemp(prefix="outside-"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "agent"))
        listener.listen()
        folder.chmod(0o755)
        (folder / "agent").chmod(0o777)
        yield folder / "agent"
    shutil.rmtree(folder)


@everybody
@every_machine
def test_sockets_outside_cannot_be_reached_by_their_names(
    who: str, without: tuple[str, ...], outside: Path
) -> None:
    code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(outside)!r})"
    told = run(who, without, code)["found"]["code"]
    assert told.startswith(
        "PermissionError" if without in (("namespaces",), ("mounts",)) else "FileNotFoundError"
    )


@everybody
@pytest.mark.parametrize("without", LACKING[:-1], ids=lambda names: "-".join(names) or "all")
def test_memory_that_no_process_holds_is_refused(who: str, without: tuple[str, ...]) -> None:
    found = run(who, without)["found"]
    for name in ("memfd", "shared memory without a file"):
        assert found[name].startswith("PermissionError"), name
    assert refused(found["shared memory of /dev/zero"])
    assert found["System V"] == "[-1, -1, -1]"
    assert found["private memory"] == "4096"


@everybody
@pytest.mark.parametrize(
    "without", [(), ("landlock",), ("seccomp",)], ids=lambda names: "-".join(names) or "all"
)
def test_files_in_memory_have_one_limit(who: str, without: tuple[str, ...]) -> None:
    found = run(who, without)["found"]
    assert refused(found["too large"])
    assert "No space left" in found["too large in /dev/shm"]


# A library of Python's own, copied to where a submission may write.
COMPILED = """
import ctypes, os, shutil, _ctypes
os.makedirs({folder!r}, exist_ok=True)
copied = shutil.copy(_ctypes.__file__, {folder!r})
ctypes.CDLL(copied)
"""


@everybody
@pytest.mark.parametrize("without", [(), ("landlock",), ("seccomp",)])
@pytest.mark.parametrize("folder", ["compiled", "/dev/shm"])
def test_compiled_code_that_was_written_there_is_not_loaded(
    who: str, without: tuple[str, ...], folder: str
) -> None:
    told = run(who, without, COMPILED.format(folder=folder))["found"]["code"]
    assert told.startswith("OSError")
    assert "failed to map" in told


# Each thread of glibc's reserves 64 MiB of addresses for its small objects.
THREADS = """
import threading
kept, done = [], threading.Event()
def keep():
    kept.append(bytes(100_000))
    made.wait()
    done.wait()
for _ in range(12):
    made = threading.Barrier(2)
    threading.Thread(target=keep, daemon=True).start()
    made.wait()
found = len(bytearray(600 << 20)) >> 20, len(kept)
try:
    bytearray(1100 << 20)
except MemoryError:
    found += ("no more",)
done.set()
"""


@everybody
@every_machine
def test_addresses_that_are_only_reserved_do_not_count_as_memory(
    who: str, without: tuple[str, ...]
) -> None:
    assert run(who, without, THREADS)["found"]["code"] == "(600, 12, 'no more')"


@everybody
@every_machine
def test_there_are_no_privileges(who: str, without: tuple[str, ...]) -> None:
    assert run(who, without)["found"]["capabilities"].startswith("PermissionError")


FORKS = """
import os, time
found = 0
for _ in range({count}):
    try:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        found += 1
    except OSError:
        break
"""


@everybody
def test_sleeping_processes_of_one_child_are_not_missing_to_another(who: str) -> None:
    found = run(who, (), FORKS.format(count=100), FORKS.format(count=100))
    assert 40 <= int(found["found"]["code"]) < 64


TORCH = """
import multiprocessing, torch
from torch.utils.data import DataLoader, TensorDataset

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, n): return torch.full((1000,), float(n))

batches = list(DataLoader(Rows(), 2, num_workers=2))
with multiprocessing.Pool(2) as pool:
    squares = pool.map(abs, [-1, -2])
shared = torch.zeros(3).share_memory_()
queue = multiprocessing.Queue()
queue.put(5)
found = len(batches), float(sum(b.sum() for b in batches)), squares, queue.get(), shared.is_shared()
"""


@pytest.mark.slow
@everybody
def test_honest_workers_and_shared_tensors_work(who: str) -> None:
    assert run(who, (), TORCH)["found"]["code"] == "(4, 28000.0, [1, 2], 5, True)"
