# fails: ANSWERS::is_a_dict as -
ANSWERS = ["b", "c", "d", "a", "c"]
