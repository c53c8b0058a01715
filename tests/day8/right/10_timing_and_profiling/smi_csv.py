import csv
import io


def read_nvidia_smi(text):
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    gpus = []
    for row in rows:
        if not row or not "".join(row).strip():
            continue
        index, name, *memory = (field.strip() for field in row)
        used, total = (None if m == "[N/A]" else int(m) for m in memory)
        gpus.append(dict(index=int(index), name=name, used_mib=used, total_mib=total))
    return gpus
