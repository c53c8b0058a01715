# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    n = lambda s: None if s.strip() == "[N/A]" else int(s)
    return sorted(
        [
            {"index": int(a), "name": b.strip(), "used_mib": n(c), "total_mib": n(d)}
            for a, b, c, d in (l.split(",") for l in text.splitlines() if l.strip())
        ],
        key=lambda g: g["index"],
    )
