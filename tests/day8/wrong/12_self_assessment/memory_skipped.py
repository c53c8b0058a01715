# fails: ANSWERS::knows_what_to_do_when_memory_is_full as out-of-memory-skipped
ANSWERS = {
    "portable": "b",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "d",
    "another_process": "c",
}
