# fails: ANSWERS::knows_what_no_grad_is_for as no-grad-without-eval
ANSWERS = {
    "portable": "b",
    "different_devices": "c",
    "no_grad": "a",
    "out_of_memory": "a",
    "another_process": "c",
}
