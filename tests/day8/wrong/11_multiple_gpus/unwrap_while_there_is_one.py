# fails: unwrap::finds_the_model_inside as wrapper-guessed-by-attribute
from torch import nn
def unwrap(model):
    while hasattr(model, "module"):
        model = model.module
    return model
