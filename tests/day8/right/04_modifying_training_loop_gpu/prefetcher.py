import torch


class DataPrefetcher:
    def __init__(self, loader, device):
        self.device = torch.device(device)
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.preload()

    def preload(self):
        try:
            x, y = next(self.loader)
        except StopIteration:
            self.next = None
            return
        if self.stream is None:
            self.next = x.to(self.device), y.to(self.device)
            return
        with torch.cuda.stream(self.stream):
            self.next = x.to(self.device, non_blocking=True), y.to(self.device, non_blocking=True)

    def __iter__(self):
        while True:
            if self.stream is not None:
                torch.cuda.current_stream(self.device).wait_stream(self.stream)
            batch = self.next
            if batch is None:
                return
            if self.stream is not None:
                for t in batch:
                    t.record_stream(torch.cuda.current_stream(self.device))
            self.preload()
            yield batch


def train_epoch(model, loader, loss_fn, optimizer, device):
    model = model.to(device)
    model.train()
    total = torch.zeros((), device=device)
    seen = 0
    for x, y in DataPrefetcher(loader, device):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.detach() * x.size(0)
        seen += x.size(0)
    return float(total) / seen if seen else 0.0
