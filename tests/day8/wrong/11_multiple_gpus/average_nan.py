# fails: average_gradients::makes_them_the_mean as -
def average_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.fill_(float("nan"))
