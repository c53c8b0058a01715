# fails: ANSWERS::knows_whose_memory_it_is as memory-of-another-process
ANSWERS = {
    "portable": "b",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "a",
}
