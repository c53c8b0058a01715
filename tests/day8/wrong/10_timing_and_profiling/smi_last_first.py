# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    out = []
    for line in text.splitlines():
        if line.strip():
            i, n, u, t = [f.strip() for f in line.split(",")]
            m = lambda f: None if f == "[N/A]" else int(f)
            out.insert(0, {"index": int(i), "name": n, "used_mib": m(u), "total_mib": m(t)})
    return out
