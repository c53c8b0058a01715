# fails: ANSWERS::knows_what_to_do_when_memory_is_full as -
ANSWERS = {
    "portable": "b",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "A smaller batch.",
    "another_process": "c",
}
