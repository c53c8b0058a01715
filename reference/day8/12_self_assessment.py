"""Do you know what happens? Five questions; write the letter of the best answer into ANSWERS.

Run me: dojo run exercises/day8/12_self_assessment.py
Check me: pytest exercises/day8/12_self_assessment.py
Read me: dojo lesson 12
"""

QUESTIONS = {
    "portable": {
        "question": "Which line lets a script use the GPU where there is one, and still run where there is none?",
        "a": 'device = torch.device("cuda")',
        "b": 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        "c": 'device = torch.device("cuda" if torch.backends.cuda.is_built() else "cpu")',
        "d": 'device = torch.device("cpu")',
    },
    "different_devices": {
        "question": "The model is on the GPU, the batch is still on the CPU. What does model(batch) do?",
        "a": "torch moves the batch to the GPU by itself, which takes a little longer.",
        "b": "The model runs on the CPU, because that is where the batch is.",
        "c": "It raises a RuntimeError that names both devices.",
        "d": "It runs, and the numbers are wrong.",
    },
    "no_grad": {
        "question": "Which are the two benefits of torch.no_grad() in an evaluation loop?",
        "a": "Less memory, and dropout and batch norm switch to evaluation mode.",
        "b": "The weights are protected from changes, and the GPU computes in half precision.",
        "c": "The gradients are set to zero, and cached memory is given back.",
        "d": "Less memory, as no activations are kept for backward, and less time, as no graph is built.",
    },
    "out_of_memory": {
        "question": "The first training batch raises torch.OutOfMemoryError. What do you try first?",
        "a": "A smaller batch.",
        "b": "torch.cuda.empty_cache() before every batch.",
        "c": "More workers in the DataLoader.",
        "d": "Catch the error and go on with the next batch.",
    },
    "another_process": {
        "question": "nvidia-smi shows that another process holds 1 GB on your GPU. What do you do?",
        "a": "My script leaks memory: I call torch.cuda.empty_cache() in it.",
        "b": "Nothing: torch takes that memory back as soon as my script needs it.",
        "c": "I have 1 GB less while it runs: find out whose it is, end it if it is mine, or use another GPU.",
        "d": "The GPU is taken: my script has to wait until that process is done.",
    },
}

# Write a letter in quotes instead of None. Read: https://pytorch.org/docs/stable/notes/cuda.html
ANSWERS = {
    # BEGIN SOLUTION
    # INSTEAD: "portable": None,
    # INSTEAD: "different_devices": None,
    # INSTEAD: "no_grad": None,
    # INSTEAD: "out_of_memory": None,
    # INSTEAD: "another_process": None,
    "portable": "b",
    "different_devices": "c",
    "no_grad": "d",
    "out_of_memory": "a",
    "another_process": "c",
    # END SOLUTION
}


if __name__ == "__main__":
    for name, choices in QUESTIONS.items():
        print(f"\n{choices['question']}")
        for letter in "abcd":
            chosen = str(ANSWERS.get(name)).strip().lower() == letter
            print(f"  {'>' if chosen else ' '} {letter}  {choices[letter]}")
        if ANSWERS.get(name) is None:
            print(f'    still to do: ANSWERS["{name}"]')
