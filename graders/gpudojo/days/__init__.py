"""The days of the course. Each package here holds the exercises of one day."""
