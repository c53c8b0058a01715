"""How are many submissions graded? Run where they can do no harm, recorded, judged, and nothing lost on the way."""
