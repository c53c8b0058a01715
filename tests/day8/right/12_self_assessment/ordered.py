from collections import OrderedDict

ANSWERS = OrderedDict(
    [("portable", "b"), ("different_devices", "c"), ("no_grad", "d"), ("out_of_memory", "a"), ("another_process", "c")]
)
