"""No archive leads out of its folder or grows beyond the limits, and its rest still counts."""

from __future__ import annotations

import copy
import gzip
import io
import stat
import tarfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from gpudojo.submissions.entries import ReadLimits

from tests.gpudojo.submissions.making import FILE, SOURCE, paths, submitted, tarred, write, zipped

CLIMBING = {
    "../evil.py": "../evil.py has a path with `..`, which leads out of the submission.",
    "a/../../evil.py": "a/../../evil.py has a path with `..`, which leads out of the submission.",
    "..\\evil.py": "..\\evil.py has a path with `..`, which leads out of the submission.",
    "/etc/evil.py": "/etc/evil.py has an absolute path, which leads out of the submission.",
    "\\\\host\\evil.py": (
        "\\\\host\\evil.py has an absolute path, which leads out of the submission."
    ),
    "C:\\evil.py": "C:\\evil.py has an absolute path, which leads out of the submission.",
    "c:evil.py": "c:evil.py has an absolute path, which leads out of the submission.",
    "d/" * 17 + "x.py": "d/" * 17 + "x.py lies more than 16 folders deep.",
    "e" * 300 + ".py": "e" * 38 + "…" + "e" * 35 + ".py has a path of more than 240 bytes.",
}


@pytest.mark.parametrize("name", CLIMBING)
@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_paths_that_lead_out_are_refused_and_the_rest_is_read(
    tmp_path: Path, kind: str, name: str
) -> None:
    files = ((name, SOURCE), (FILE, SOURCE))
    data = (
        zipped(*files)
        if kind == "zip"
        else tarred(*files, mode="w:gz" if kind == "tar.gz" else "w")
    )
    found = submitted(write(tmp_path / f"s.{kind}", data))
    assert paths(found) == [FILE]
    assert found.notes == (CLIMBING[name],)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"s.{kind}"], (
        "nothing is unpacked to disk"
    )
    alone = submitted(
        write(tmp_path / f"alone.{kind}", zipped(files[0]) if kind == "zip" else tarred(files[0]))
    )
    assert alone.problem == CLIMBING[name]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_is_read(tmp_path: Path, form: int) -> None:
    long = "long/" + "a" * 90 + "/" + "b" * 90 + ".py"
    files = [
        ("é.py" if form != tarfile.USTAR_FORMAT else "e.py", b"1"),
        (FILE, SOURCE),
        (long, b"2" * 5000),
    ]
    for mode in ("w", "w:gz"):
        found = submitted(write(tmp_path / f"{mode[-1]}.tar", tarred(*files, mode=mode, form=form)))
        assert {file.path: file.data for file in found.files} == dict(files)
        assert found.notes == ()


def test_backslashes_of_windows_are_separators(tmp_path: Path) -> None:
    assert paths(submitted(write(tmp_path / "s.zip", zipped((f"work\\{FILE}", SOURCE))))) == [
        f"work/{FILE}"
    ]


def test_links_and_devices(tmp_path: Path) -> None:
    infos = []
    for kind in (
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        b"S",
    ):
        info = tarfile.TarInfo(f"{kind.decode()}.py")
        info.type = kind
        info.linkname = "/etc/passwd"
        infos.append((info, b""))
    found = submitted(write(tmp_path / "t.tar.gz", tarred(*infos, (FILE, SOURCE))))
    assert paths(found) == [FILE]
    special = "is neither a file nor a folder but a pipe, socket or device."
    assert found.notes == (
        "2.py is a link, which is not followed.",
        "1.py is a link, which is not followed.",
        f"6.py {special}",
        f"3.py {special}",
        f"4.py {special}",
        "S.py is stored in a way that is not supported.",
    )
    link = zipfile.ZipInfo("link.py")
    pipe = zipfile.ZipInfo("pipe.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    pipe.external_attr = (stat.S_IFIFO | 0o777) << 16
    found = submitted(
        write(tmp_path / "z.zip", zipped((link, b"/etc/passwd"), (pipe, b"x"), (FILE, SOURCE)))
    )
    assert paths(found) == [FILE]
    assert found.notes == ("link.py is a link, which is not followed.", f"pipe.py {special}")


def test_names_that_come_twice_or_collide(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped(
            ("a.py", b"first"),
            ("a.py", b"last"),
            ("A.py", b"other"),
            ("b.py", b"1"),
            ("b.py/c.py", b"2"),
        )
    for name, data in (
        ("z.zip", twice),
        (
            "t.tar",
            tarred(
                ("a.py", b"first"),
                ("a.py", b"last"),
                ("A.py", b"other"),
                ("b.py", b"1"),
                ("b.py/c.py", b"2"),
            ),
        ),
    ):
        found = submitted(write(tmp_path / name, data))
        assert {file.path: file.data for file in found.files} == {"A.py": b"other", "b.py": b"1"}
        assert found.notes == (
            "a.py is in the archive more than once; the last one counts, as when it is unpacked.",
            "a.py was ignored: its name differs from another file's only in upper and lower case.",
            "b.py/c.py was ignored: it is a file and a folder at once.",
        )


def test_encrypted_and_unusual_zips(tmp_path: Path) -> None:
    data = bytearray(zipped((FILE, SOURCE)))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    found = submitted(write(tmp_path / "locked.zip", bytes(data)))
    assert found.problem == f"{FILE} is encrypted; pack it again without a password."
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        found = submitted(write(tmp_path / f"{method}.zip", zipped((FILE, SOURCE), method=method)))
        assert (
            found.problem
            == f"{FILE} is packed by an unusual method; pack it again as an ordinary zip."
        )


def test_archives_that_are_cut_off_or_something_else(tmp_path: Path) -> None:
    whole = zipped((FILE, SOURCE), ("b.py", b"x" * 2000))
    packed = tarred((FILE, SOURCE), ("b.py", bytes(range(256)) * 99))
    plain = tarred((FILE, SOURCE), ("b.py", b"x" * 2000), mode="w")
    said = {
        "cut.zip": (
            whole[:-30],
            (
                "cut.zip is cut off or damaged: a zip's directory is missing at its end; pack it "
                "again."
            ),
        ),
        "html.zip": (b"<html>", "html.zip is not a zip file."),
        "rar.zip": (
            b"Rar!\x1a\x07",
            "rar.zip is a rar archive under another name; hand in a .zip.",
        ),
        "cut.tgz": (packed[:40], "cut.tgz is cut off, and nothing in it could be read."),
        "text.tar.gz": (gzip.compress(b"x = 1"), "text.tar.gz is packed, but not a tar."),
    }
    for name, (data, sentence) in said.items():
        assert submitted(write(tmp_path / name, data)).problem == sentence
    for name, data in (("half.tgz", packed[:-200]), ("half.tar", plain[:2500])):
        found = submitted(write(tmp_path / name, data))
        assert paths(found) == [FILE]
        assert any(
            note.endswith(("is cut off.", "is cut off; what comes before that was read."))
            for note in found.notes
        )
    assert paths(submitted(write(tmp_path / "really-a-tar.zip", packed))) == [FILE, "b.py"]
    assert paths(submitted(write(tmp_path / "really-a-zip.tar.gz", whole))) == [FILE, "b.py"]


def test_a_damaged_member_leaves_the_others(tmp_path: Path) -> None:
    data = bytearray(zipped(("a.py", SOURCE), (FILE, SOURCE), method=zipfile.ZIP_STORED))
    data[data.index(SOURCE)] ^= 1
    found = submitted(write(tmp_path / "s.zip", bytes(data)))
    assert paths(found) == [FILE]
    assert found.notes == ("a.py is damaged in the archive.",)


def test_archives_are_opened_two_deep_however_they_lie(tmp_path: Path) -> None:
    inner = zipped((FILE, SOURCE), ("core.zip", zipped(("x.py", SOURCE))))
    found = submitted(
        write(
            tmp_path / "s.zip",
            zipped(("hand-in/inner.zip", inner), ("t.tgz", tarred(("y.py", SOURCE)))),
        )
    )
    assert paths(found) == ["t.tgz/y.py", f"hand-in/inner.zip/{FILE}"]
    assert found.notes == (
        (
            "hand-in/inner.zip/core.zip lies in an archive in an archive and is not opened; pack "
            "the files themselves into one .zip."
        ),
    )
    # In a folder, which is no archive, as much is opened.
    write(tmp_path / "g" / "s.zip", zipped(("hw/inner.zip", inner)))
    found = submitted(tmp_path / "g")
    assert paths(found) == [f"s.zip/hw/inner.zip/{FILE}"]
    assert ["core.zip lies in an archive" in note for note in found.notes] == [True]
    write(tmp_path / "f" / "inner.zip", inner)
    write(tmp_path / "f" / "broken.zip", b"PK\x03\x04")
    found = submitted(tmp_path / "f")
    assert set(paths(found)) == {f"inner.zip/{FILE}", "inner.zip/core.zip/x.py"}
    assert (
        "broken.zip is cut off or damaged: a zip's directory is missing at its end; pack it again."
        in found.notes
    )


def _bombs() -> dict[str, tuple[bytes, str]]:
    zeros = bytes(9_000_000)
    dense = zipped(("a.py", zeros))
    middle = zipped(*((f"{number}.zip", dense) for number in range(16)))
    layers = zipped(*((f"{number}.zip", middle) for number in range(16)))
    shared = io.BytesIO()
    with zipfile.ZipFile(shared, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", SOURCE)
        for number in range(300):  # every further entry of the directory points at the same bytes
            other = copy.copy(archive.filelist[0])
            other.filename = other.orig_filename = f"{number}.py"
            archive.filelist.append(other)
    return {
        "dense.zip": (dense, "unpacks to more than 200 times its size, as only a zip bomb does."),
        "large.zip": (zipped(("a.py", zeros + zeros)), "a.py is larger than 10.00 MiB."),
        "layers.zip": (layers, "lies in an archive in an archive and is not opened;"),
        "shared.zip": (shared.getvalue(), "shares its bytes with another file of the archive"),
        "dense.tgz": (
            tarred(("a.py", zeros)),
            "unpacks to more than 200 times its size, as only a bomb does.",
        ),
        "endless.tgz": (
            gzip.compress(bytes(90_000_000), 1),
            "unpacks to more than 50.00 MiB, and nothing in it could be read.",
        ),
        "entries.zip": (b"PK\x03\x04" + b"PK\x01\x02" * 30_000, "holds more than 20000 entries."),
    }


def test_bombs_cost_little_and_are_named(tmp_path: Path) -> None:
    for name, (data, said) in _bombs().items():
        path = write(tmp_path / name, data)
        tracemalloc.start()
        begin = time.process_time()
        found = submitted(path)
        seconds, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert said in (found.problem or ""), name
        assert found.files == (), name
        assert seconds < 5, name
        assert peak < 160_000_000, name


def test_what_is_unpacked_is_counted_over_all_archives(tmp_path: Path) -> None:
    text = bytes(range(256)) * 4
    inner = zipped(*((f"{number}.py", text) for number in range(8)), method=zipfile.ZIP_STORED)
    data = zipped(*((f"{number}.zip", inner) for number in range(8)), method=zipfile.ZIP_STORED)
    found = submitted(write(tmp_path / "s.zip", data), ReadLimits(total_bytes=30_000))
    assert 0 < sum(len(file.data) for file in found.files) < 30_000
    assert any("goes beyond the 29.30 KiB that are read in total." in note for note in found.notes)


def test_a_tar_with_a_negative_or_enormous_size_ends(tmp_path: Path) -> None:
    for size in (b"-0000001000\0", b"\xff" * 12, b"\x80" + b"\x7f" * 11, b"77777777777\0"):
        data = bytearray(tarred((FILE, SOURCE), mode="w"))
        data[124:136] = size
        data[148:156] = b" " * 8
        data[148:156] = b"%06o\0 " % sum(data[:512])
        found = submitted(write(tmp_path / "s.tar", bytes(data)))
        assert found.files == ()
        assert found.problem in (
            "The archive is damaged in the middle; what comes after that was ignored.",
            f"{FILE} is cut off.",
        )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("José.py".encode(), "José.py"),
        ("José.py".encode("cp437"), "José.py"),
        (b"J\xc3.py", "J├.py"),
    ],
)
def test_a_zip_whose_names_are_utf8_without_saying_so(
    tmp_path: Path, written: bytes, read: str
) -> None:
    """As macOS packs them; other names are of code page 437, as the format has it."""
    data = zipped(("x" * len(written), SOURCE)).replace(b"x" * len(written), written)
    assert paths(submitted(write(tmp_path / "s.zip", data))) == [read]


def test_a_zip_name_that_is_not_utf8_or_holds_a_null(tmp_path: Path) -> None:
    flagged = zipped(("é.py", SOURCE)).replace("é.py".encode(), b"\xff\xfe.py")
    assert (
        submitted(write(tmp_path / "a.zip", flagged)).problem
        == "a.zip has a name in it that says it is UTF-8 and is not."
    )
    null = zipped(("aXb.py", SOURCE)).replace(b"aXb.py", b"a\0b.py")
    assert (
        submitted(write(tmp_path / "b.zip", null)).problem
        == "a⟨U+0000⟩b.py has a null byte in its name."
    )
    bare = tarred((tarfile.TarInfo("\udcff.py"), SOURCE), mode="w", form=tarfile.GNU_FORMAT)
    found = submitted(write(tmp_path / "c.tar", bare))
    assert paths(found) == ["_.py"]
    assert found.notes == (
        "⟨U+DCFF⟩.py is read as _.py, because not every system can store its name.",
    )


def test_a_whole_class_in_one_archive_is_nobodys_submission(tmp_path: Path) -> None:
    said = (
        "It holds the work of several students; to grade them, give it by itself: dojo grade PATH "
        "--out DIR."
    )
    canvas = [
        (f"examplead_101_9001_{FILE}", SOURCE),
        ("samplebo_102_9002_day8.zip", zipped((FILE, SOURCE))),
    ]
    moodle = [
        (f"{name}_assignsubmission_file_/{FILE}", SOURCE)
        for name in ("Ada Example_12", "Bo Sample_13")
    ]
    gradescope = [(f"export/submission_{number}/{FILE}", SOURCE) for number in (1, 2)]
    for number, files in enumerate((canvas, moodle, gradescope)):
        assert submitted(write(tmp_path / f"{number}.zip", zipped(*files))).problem == said
        assert submitted(write(tmp_path / f"{number}.tgz", tarred(*files[:1]))).problem is None


@pytest.mark.parametrize(
    "name", ["." * 30_000, "." * 60_000 + "x.py", " ." * 20_000 + "_", "a" * 60_000 + ".py"]
)
@pytest.mark.parametrize("tar", [True, False])
def test_a_long_name_is_refused_before_anything_is_done_with_it(
    tmp_path: Path, name: str, tar: bool
) -> None:
    """Quadratic, such a name takes minutes; a longer one in a tar, hours."""
    data = (
        tarred((name * 20, b""), (FILE, SOURCE), mode="w")
        if tar
        else zipped((name, b""), (FILE, SOURCE))
    )
    found = submitted(write(tmp_path / ("a.tar" if tar else "a.zip"), data))
    assert paths(found) == [FILE]
    assert any("has a path of more than 240 bytes" in note for note in found.notes)


def test_an_entry_without_a_name_is_passed_over(tmp_path: Path) -> None:
    nameless = bytearray(
        zipped(
            (
                "x",
                b"",
            ),
            (FILE, SOURCE),
        )
    )
    for signature, length in ((b"PK\x03\x04", 26), (b"PK\x01\x02", 28)):
        at = nameless.index(signature)
        nameless[at + length : at + length + 2] = b"\0\0"
        del nameless[at + (30 if length == 26 else 46)]
    end = nameless.rindex(b"PK\x05\x06")
    size = int.from_bytes(nameless[end + 12 : end + 16], "little") - 1
    start = int.from_bytes(nameless[end + 16 : end + 20], "little") - 1
    nameless[end + 12 : end + 20] = size.to_bytes(4, "little") + start.to_bytes(4, "little")
    second = nameless.index(b"PK\x01\x02", nameless.index(b"PK\x01\x02") + 1)
    offset = int.from_bytes(nameless[second + 42 : second + 46], "little") - 1
    nameless[second + 42 : second + 46] = offset.to_bytes(4, "little")
    with zipfile.ZipFile(io.BytesIO(nameless)) as archive:
        assert [info.filename for info in archive.infolist()] == ["", FILE]
    found = submitted(write(tmp_path / "a.zip", bytes(nameless)))
    assert (paths(found), found.problem) == ([FILE], None)


def test_a_gzip_of_very_many_pieces_is_read_in_one_pass(tmp_path: Path) -> None:
    """To copy what is left at the end of each piece would take hours."""
    whole = tarred((FILE, SOURCE), mode="w")
    few = b"".join(
        gzip.compress(whole[at : at + 100]) + b"\0" * 7 for at in range(0, len(whole), 100)
    )
    assert paths(submitted(write(tmp_path / "few.tar.gz", few + b"\0" * 30_000_000))) == [FILE]
    many = gzip.compress(whole) + gzip.compress(b"", 9, mtime=0) * 1_000_000
    found = submitted(write(tmp_path / "many.tar.gz", many))
    assert paths(found) == [FILE]
    assert found.notes == (
        "The archive is packed in too many pieces; what comes before that was read.",
    )


def test_very_many_records_of_an_extended_header_are_read_in_one_pass(tmp_path: Path) -> None:
    records = b"6 a=b\n" * 2_000_000 + b"19 path=another.py\n"
    header = tarfile.TarInfo("header")
    header.type = tarfile.XHDTYPE
    data = tarred((header, records), (FILE, SOURCE), mode="w", form=tarfile.USTAR_FORMAT)
    assert paths(submitted(write(tmp_path / "a.tar", data))) == ["another.py"]


def test_what_is_unpacked_in_vain_counts(tmp_path: Path) -> None:
    """Damaged files and packed tars in a zip: each within its limits, together many times what may
    be unpacked.
    """
    limits = ReadLimits(file_bytes=100_000, total_bytes=300_000, ratio=100_000)
    damaged = zipped(*((f"{number}.py", bytes(90_000)) for number in range(20)))
    crc = damaged[14:18]
    found = submitted(write(tmp_path / "a.zip", damaged.replace(crc, bytes(4))), limits)
    assert sum("is damaged in the archive" in note for note in found.notes) == 3
    inner = gzip.compress(tarred(("x.py", b"\n" * 200_000), mode="w"))
    nested = zipped(*((f"{number}.tgz", inner) for number in range(5)))
    found = submitted(write(tmp_path / "b.zip", nested), limits)
    assert (
        sum(
            "unpacks to more than" in note or "nothing in it could be read" in note
            for note in found.notes
        )
        >= 3
    )


@pytest.mark.parametrize("ending", [".tar.gz", ".TGZ", ".tar", ".zip"])
def test_archives_in_a_folder_are_those_that_are_read_by_themselves(
    tmp_path: Path, ending: str
) -> None:
    data = tarred((FILE, SOURCE), mode="w" if ending == ".tar" else "w:gz")
    if ending == ".zip":
        data = zipped((FILE, SOURCE))
    write(tmp_path / "ada" / f"hw{ending}", data)
    found = submitted(tmp_path / "ada")
    assert (paths(found), found.notes) == ([f"hw{ending}/{FILE}"], ())
    write(tmp_path / "bo" / "hw.tar.bz2", b"BZh")
    said = "hw.tar.bz2 is an archive of a kind that is not supported (.tar.bz2); hand in a .zip."
    assert submitted(tmp_path / "bo").problem == said
