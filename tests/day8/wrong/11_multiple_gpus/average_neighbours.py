# fails: average_gradients::asks_how_many_there_are as -
import torch
import torch.distributed as dist


def average_gradients(model):
    me, n = dist.get_rank(), dist.get_world_size()
    for p in model.parameters():
        if p.grad is not None and n > 1:
            theirs = torch.empty_like(p.grad)
            ops = [dist.P2POp(dist.isend, p.grad.clone(), (me + 1) % n), dist.P2POp(dist.irecv, theirs, (me - 1) % n)]
            for r in dist.batch_isend_irecv(ops):
                r.wait()
            p.grad = (p.grad + theirs) / n
