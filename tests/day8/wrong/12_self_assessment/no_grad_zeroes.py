# fails: ANSWERS::knows_what_no_grad_is_for as -
ANSWERS = {
    "portable": "b",
    "different_devices": "c",
    "no_grad": "c",
    "out_of_memory": "a",
    "another_process": "c",
}
