names = ["another_process", "no_grad", "out_of_memory", "portable", "different_devices", "a_question_of_my_own"]
ANSWERS = {name: letter for name, letter in zip(names, "cdabcx")}
