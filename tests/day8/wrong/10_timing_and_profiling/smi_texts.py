# fails: read_nvidia_smi::reads_every_gpu as -
def read_nvidia_smi(text):
    keys = ("index", "name", "used_mib", "total_mib")
    return [
        {key: None if cell == "[N/A]" else cell for key, cell in zip(keys, line.split(", "))}
        for line in text.splitlines()
        if line
    ]
