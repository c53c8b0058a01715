# fails: read_nvidia_smi::reads_missing_values as -
import csv
import io


def read_nvidia_smi(text):
    gpus = []
    for index, name, used, total in csv.reader(io.StringIO(text.strip()), skipinitialspace=True):
        gpus.append(
            {
                "index": int(index),
                "name": name,
                "used_mib": int(used) if used.isdigit() else 0,
                "total_mib": int(total) if total.isdigit() else 0,
            }
        )
    return gpus
