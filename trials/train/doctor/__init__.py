"""Node probe: reports what the ranks of a doctor's job see."""
