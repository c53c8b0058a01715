# fails: ANSWERS::is_a_dict as -
MY_ANSWERS = {"portable": "b"}
ANSWERS = None
