import torch


def top_operations(fn, count=5):
    with torch.profiler.profile() as prof:
        fn()
    table = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=count, max_name_column_width=200)
    lines = table.splitlines()
    bars = [i for i, l in enumerate(lines) if set(l) <= {"-", " "} and l.strip()]
    return [l.split("  ")[0].strip() or l.split()[0] for l in lines[bars[1] + 1 : bars[2]]]
