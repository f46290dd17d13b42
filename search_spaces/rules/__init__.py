"""Rules that exclude layouts: general ones, the engines' and the trainers'."""
