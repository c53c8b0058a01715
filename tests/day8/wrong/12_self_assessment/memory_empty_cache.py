# fails: ANSWERS::knows_what_to_do_when_memory_is_full as empty-cache-first
ANSWERS = {
    "portable": "b",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "b",
    "another_process": "c",
}
